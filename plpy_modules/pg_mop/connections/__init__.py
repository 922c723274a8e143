"""Sessions to servers: how they are opened, asked and ended."""
