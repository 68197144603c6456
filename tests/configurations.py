"""The smallest configuration."""

MINIMAL = {"name": "x", "sources": [{"kind": "folder", "name": "a", "path": "clips"}]}
