"""Values of options of `retrieval export`."""

AUTO, ON, OFF = CHOICES = ("auto", "on", "off")  # of --verify
