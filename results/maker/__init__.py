"""What makes the files of `results/` and reads them again.

    code.py     which code is here: commit, tree, and whether it is as committed
    header.py   what every file says of how it was made
    store.py    JSON that stays the same, with short figures and one row per line
    papers.py   a finished reproduction as a result: claims judged anew from the stored tables
    run.py      one paper in a process of its own, in stretches that add up
    queue.py    many papers: cheap ones first, those whose tables hold times alone

`results/make.py` is the command; the documentation's build and `benchmarks/record.py` use the rest.
"""
