"""Sessions with this server and with others: connection targets, opening, polling, locks, links."""
