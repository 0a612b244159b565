"""Read photos and labels from folders, tables and tar shards."""
