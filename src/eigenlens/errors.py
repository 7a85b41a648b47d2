"""The one exception family: an error says what was wrong, with the value, and what to do."""


class EigenlensError(Exception):
    """Bad input or a state the user can mend.

    The command line prints the message and ends with exit code 2.
    """


class EigenlensWarning(UserWarning):
    """What a user should know and the work can go on with.

    The command line prints it as one line on standard error.
    """


def first_line(error: BaseException) -> str:
    """What an error of a library says, cut to fit a sentence; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]
