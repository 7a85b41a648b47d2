"""How each catalogue package becomes an ordinary transformers folder: one file per model, each with
`convert`.
"""
