#!/usr/bin/env bash
# Installs the programs that some tests need and that pip does not have: Spin and gcc (the
# explorer's states counted a second time), Chromium (the HTML report). With apt, as root or by
# sudo; elsewhere it says what is missing, and fails.
set -uo pipefail

declare -A names=([spin]="spin" [gcc]="gcc" [chromium]="chromium chromium-browser google-chrome")
packages=(spin gcc chromium)

missing() {
    local package name
    for package in "${packages[@]}"; do
        for name in ${names[$package]}; do
            if command -v "$name" >/dev/null; then continue 2; fi
        done
        printf '%s\n' "$package"
    done
}

mapfile -t wanted < <(missing)
if ((${#wanted[@]} == 0)); then
    echo "spin, gcc and a Chromium are installed"
    exit 0
fi

root=()
((EUID == 0)) || root=(sudo -n)
if command -v apt-get >/dev/null && { ((EUID == 0)) || command -v sudo >/dev/null; }; then
    echo "installing ${wanted[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${root[@]}" apt-get update -qq
    "${root[@]}" apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
fi

mapfile -t wanted < <(missing)
if ((${#wanted[@]})); then
    echo "not installed: ${wanted[*]}. Debian, Ubuntu: apt-get install ${wanted[*]} (as root)." \
        "Tests that need them are left out by 'make test', and fail in .ci/run." >&2
    exit 1
fi
