"""The pages: each module makes the HTML of one of them from what was read."""
