"""Files that releases wrote, and that every later version opens."""
