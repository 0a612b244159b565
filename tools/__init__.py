"""Tools of the developers: not in the wheel."""
