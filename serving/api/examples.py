"""Examples of responses in the API documentation."""

from __future__ import annotations

from typing import Any

ANSWER: dict[str, Any] = {
    "decision": "match",
    "reason": "",
    "matches": [
        {
            "item_id": "mug-12",
            "photo_id": "mugs/12-a.jpg",
            "distance": 0.41,
            "metadata": {"brand": "Arzberg"},
        }
    ],
    "nearest": {
        "item_id": "mug-12",
        "photo_id": "mugs/12-a.jpg",
        "distance": 0.41,
        "metadata": {"brand": "Arzberg"},
    },
    "threshold": 0.55,
    "nearest_distance": 0.41,
    "margin": 0.14,
    "certainty": 21.4,
    "request_id": "4c1d5a0e",
    "timings_ms": {"queue": 0.1, "decode": 2.3, "embed": 7.9, "search": 0.4},
    "bundle_id": "9f0a…",
    "gallery_version": 12,
    "threshold_status": "certified",
    "review": [],
    "p_value_without_filter": False,
    "photos": 1,
    "threshold_photos": 1,
    "explanation": None,
}
