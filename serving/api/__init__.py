"""The HTTP API: routes, schemas, request bodies and problem documents."""
