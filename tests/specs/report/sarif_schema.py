"""What SARIF 2.1.0 requires of the objects that kvproof writes, as a JSON schema of our own.

Stricter than the standard where a code host is: every result has a place in a file.
"""

from __future__ import annotations

from typing import Any

LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "message": {"$ref": "#/definitions/message"},
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation", "region"],
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {
                        # relative to the root of the repository
                        "uri": {"type": "string", "pattern": "^[^/:]+(/[^/:]+)*$"},
                        "uriBaseId": {"const": "%SRCROOT%"},
                    },
                    "additionalProperties": False,
                },
                "region": {
                    "type": "object",
                    "required": ["startLine", "endLine"],
                    "properties": {
                        "startLine": {"type": "integer", "minimum": 1},
                        "endLine": {"type": "integer", "minimum": 1},
                    },
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
        "logicalLocations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "fullyQualifiedName": {"type": "string"},
                    "kind": {"enum": ["function"]},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}

SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "message": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 1}},
        },
        "text": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string"}, "markdown": {"type": "string"}},
            "additionalProperties": False,
        },
        "location": LOCATION,
        "rule": {
            "type": "object",
            "required": ["id", "shortDescription", "fullDescription", "help"],
            "properties": {
                "id": {"type": "string"},
                "name": {"type": "string"},
                "shortDescription": {"$ref": "#/definitions/text"},
                "fullDescription": {"$ref": "#/definitions/text"},
                "help": {"$ref": "#/definitions/text"},
                "defaultConfiguration": {
                    "type": "object",
                    "properties": {"level": {"enum": ["none", "note", "warning", "error"]}},
                    "additionalProperties": False,
                },
                "properties": {"type": "object"},
            },
            "additionalProperties": False,
        },
        "result": {
            "type": "object",
            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "level": {"enum": ["none", "note", "warning", "error"]},
                "message": {"$ref": "#/definitions/message"},
                "locations": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {"$ref": "#/definitions/location"},
                },
                "relatedLocations": {
                    "type": "array",
                    "uniqueItems": True,
                    "items": {"$ref": "#/definitions/location"},
                },
                "partialFingerprints": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                },
            },
            "additionalProperties": False,
        },
    },
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "properties": {
                                    "name": {"const": "kvproof"},
                                    "semanticVersion": {
                                        "type": "string",
                                        "pattern": r"^\d+\.\d+\.\d+(-[\w.]+)?(\+[\w.]+)?$",
                                    },
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {"$ref": "#/definitions/rule"},
                                    },
                                },
                                "additionalProperties": False,
                            }
                        },
                    },
                    "automationDetails": {"type": "object"},
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "invocations": {
                        "type": "array",
                        "items": {"type": "object", "required": ["executionSuccessful"]},
                    },
                    "results": {"type": "array", "items": {"$ref": "#/definitions/result"}},
                    "properties": {"type": "object"},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
