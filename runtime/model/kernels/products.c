/* Products with packed weights: out[rows, columns] = x[rows, in] @ weight.T + bias.

   A decode step is as fast as it reads the weights. They are packed so that it reads them once and
   in order: panels of 32 columns, panel by panel.

       f32:   [columns / 32, in, 32]
       bf16:  [columns / 32, in / 2, 32, 2], what the tiles of AMX multiply; there is no other way

   in the first case a panel is multiplied with up to 12 rows at once, whose sums fill the
   registers; in the second with 32. Each sum goes through `in` in order, whatever the other rows:
   a row's result does not depend on its batch. Sums are in float.

   Gated: a panel has 16 columns of the gate and the same 16 of up; out[rows, columns / 2] is
   silu(gate) * up. */

#ifdef __AMX_BF16__
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "lanes.h"

#define PANEL 32
#define AHEAD 2048 /* bytes to fetch in advance */
#define ROWS_F32 12
#define ROWS_BF16 32

INLINE void finish(void *out, int64_t row, int64_t column, int64_t columns, lanes first,
                   lanes second, const void *bias, int gated, enum type type) {
    if (bias) {
        first += load(bias, column, WIDTH, type);
        second += load(bias, column + WIDTH, WIDTH, type);
    }
    if (gated) {
        store(out, (row * columns + column) / 2, WIDTH,
              first / (1.0f + exponential(-first)) * second, type);
        return;
    }
    store(out, row * columns + column, WIDTH, first, type);
    store(out, row * columns + column + WIDTH, WIDTH, second, type);
}

INLINE void fetch_ahead(const void *from) {
    __builtin_prefetch((const char *)from + AHEAD);
    __builtin_prefetch((const char *)from + AHEAD + 64);
}

INLINE void multiply_f32(const float *x, const float *panel, const float *bias, float *out,
                         int64_t row, int64_t column, int64_t in, int64_t columns, int rows,
                         int gated) {
    lanes first[ROWS_F32] = {}, second[ROWS_F32] = {};
    x += row * in;
    for (int64_t k = 0; k < in; k++, panel += PANEL) {
        fetch_ahead(panel);
        lanes a = load(panel, 0, WIDTH, F32), b = load(panel, WIDTH, WIDTH, F32);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            first[r] += x[r * in + k] * a;
            second[r] += x[r * in + k] * b;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        finish(out, row + r, column, columns, first[r], second[r], bias, gated, F32);
}

#define CASE(n) case n: multiply_f32(x, panel, bias, out, row, column, in, columns, n, gated); break;

static void panel_f32(const float *x, const float *panel, const float *bias, float *out,
                      int64_t column, int64_t rows, int64_t in, int64_t columns, int gated) {
    int64_t blocks = (rows + ROWS_F32 - 1) / ROWS_F32;
    for (int64_t block = 0; block < blocks; block++) { /* of equal size, as near as can be */
        int64_t row = rows * block / blocks;
        switch (rows * (block + 1) / blocks - row) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        }
    }
}

int product_ready_f32(void) { return 1; }

void product_f32(const float *x, const float *packed, const float *bias, float *out, int64_t rows,
                 int64_t in, int64_t columns, int gated, int threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t column = 0; column < columns; column += PANEL)
        panel_f32(x, packed + column * in, bias, out, column, rows, in, columns, gated);
}

#ifdef __AMX_BF16__

#define REQUEST_PERMISSION 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18              /* XFEATURE_XTILEDATA */

/* Whether the kernel lets this process use the tiles. */
int product_ready_bf16(void) { return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0; }

/* Tiles: 0 to 3 sums, of two groups of rows by two of columns; 4, 5 rows of x; 6, 7 the panel. */
INLINE void configure(int64_t rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    uint8_t upper = (uint8_t)at_most(rows, 16), lower = (uint8_t)(rows - upper);
    const uint8_t counts[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = counts[tile];
        config.row_bytes[tile] = counts[tile] ? 64 : 0;
    }
    _tile_loadconfig(&config);
}

/* As many rows as the tiles are configured for. */
INLINE void multiply_bf16(const uint16_t *x, const uint16_t *panel, const uint16_t *bias,
                          uint16_t *out, int64_t row, int64_t column, int64_t in, int64_t columns,
                          int rows, int gated) {
    float sums[ROWS_BF16][PANEL] __attribute__((aligned(64)));
    const uint16_t *upper = x + row * in, *lower = upper + 16 * in;
    int two = rows > 16;
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < in; k += 32, panel += 32 * PANEL) {
        for (int line = 0; line < 32; line++) __builtin_prefetch((const char *)panel + AHEAD + line * 64);
        _tile_loadd(6, panel, 4 * PANEL);
        _tile_loadd(7, panel + PANEL, 4 * PANEL);
        _tile_loadd(4, upper + k, in * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, lower + k, in * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + 16, sizeof sums[0]);
    if (two) {
        _tile_stored(2, sums[16], sizeof sums[0]);
        _tile_stored(3, sums[16] + 16, sizeof sums[0]);
    }
    for (int r = 0; r < rows; r++)
        finish(out, row + r, column, columns, load(sums[r], 0, WIDTH, F32),
               load(sums[r], WIDTH, WIDTH, F32), bias, gated, BF16);
}

static void panel_bf16(const uint16_t *x, const uint16_t *panel, const uint16_t *bias,
                       uint16_t *out, int64_t column, int64_t rows, int64_t in, int64_t columns,
                       int gated) {
    int64_t whole = rows / ROWS_BF16 * ROWS_BF16;
    if (whole && whole != rows) configure(ROWS_BF16);
    for (int64_t row = 0; row < whole; row += ROWS_BF16)
        multiply_bf16(x, panel, bias, out, row, column, in, columns, ROWS_BF16, gated);
    if (whole == rows) return;
    if (whole) configure(rows - whole);
    multiply_bf16(x, panel, bias, out, whole, column, in, columns, (int)(rows - whole), gated);
}

void product_bf16(const uint16_t *x, const uint16_t *packed, const uint16_t *bias, uint16_t *out,
                  int64_t rows, int64_t in, int64_t columns, int gated, int threads) {
#pragma omp parallel num_threads(threads)
    {
        configure(at_most(rows, ROWS_BF16));
#pragma omp for schedule(dynamic, 1)
        for (int64_t column = 0; column < columns; column += PANEL)
            panel_bf16(x, packed + column * in, bias, out, column, rows, in, columns, gated);
        _tile_release();
    }
}

#else

int product_ready_bf16(void) { return 0; }

void product_bf16(const uint16_t *x, const uint16_t *packed, const uint16_t *bias, uint16_t *out,
                  int64_t rows, int64_t in, int64_t columns, int gated, int threads) {
    (void)x, (void)packed, (void)bias, (void)out, (void)rows, (void)in, (void)columns, (void)gated,
        (void)threads;
}

#endif
