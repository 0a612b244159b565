"""Sentences on points and on promises."""

from __future__ import annotations
