"""Answers that the code gave before it was made smaller. Temporary: they go when that work is done."""
