"""The one exception family: an error says what was wrong, with the value, and what to do."""


class EigenlensError(Exception):
    """Bad input, or a state that the user can repair.

    The command line prints the message and ends with exit code 2.
    """


class EigenlensWarning(UserWarning):
    """Something a user should know, although the work goes on.

    The command line prints it as one line on standard error.
    """


def first_line(error: BaseException) -> str:
    """Return a library's error message, cut to fit a sentence, or its type if it is empty."""
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]
