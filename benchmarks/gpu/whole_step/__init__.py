"""An experiment: a whole decode step as one persistent kernel. Right, and not yet faster: `NOTES.md`, round 4."""
