"""What is claimed, what was judged, and where the sources err."""
