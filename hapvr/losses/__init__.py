"""Losses as pure functions of similarities and ternary labels, and the objective that weighs
them."""
