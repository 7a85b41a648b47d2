"""Damaged and hostile input for every reader: `cases` has the readers, `mutations` and `archives`
the damage, `guard` the rules.
"""
