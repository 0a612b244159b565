"""Turning a catalogue into a gallery: decode, embed and write."""
