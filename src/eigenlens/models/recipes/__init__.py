"""How each catalogue package becomes an ordinary transformers folder: one file a model, each with
`convert`.
"""
