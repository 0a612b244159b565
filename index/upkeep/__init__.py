"""What is done to a gallery as a whole: rebuild, verify, back up and restore."""
