"""Servers, sessions, data and checks that the tests share."""
