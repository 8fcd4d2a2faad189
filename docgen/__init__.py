"""Writes docs/reference from the code. A development tool: the product does not import it, and it does not ship."""
