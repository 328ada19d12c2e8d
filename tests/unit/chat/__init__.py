"""Messages, media and what may be fetched."""
