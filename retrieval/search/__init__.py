"""Search: looks of a photo, and the answer that follows from its neighbours."""
