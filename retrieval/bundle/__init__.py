"""The bundle: model, preprocessing, distance form and operating point in one directory."""
