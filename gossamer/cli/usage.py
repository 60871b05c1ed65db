"""Runs the command line, and turns an error in usage into one line, like every other error."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from gossamer.cli.app import app
from gossamer.errors import InputError, did_you_mean

# some versions of typer contain a copy of click, others import the package click
_ClickException: Any = typer.BadParameter.__mro__[2]


def invoke() -> int:
    """Runs the verb that the arguments name, and returns the exit code. Raises InputError for
    wrong usage."""
    try:
        return app(prog_name="gossamer", standalone_mode=False) or 0
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return 2
        raise InputError(_explained(error)) from None


def _explained(error: Any) -> str:
    """Returns the message of an error in usage, with the value that was given to the option."""
    message = error.format_message()
    if match := re.match(r"Invalid value for '?([^':]+)'?(?: / '[^']*')*: (.*)", message, re.S):
        option, reason = match.groups()
        option_text = f"{option} {_value(option)}".strip()
        if least := re.search(r"(?:x>=|greater than or equal to )(\d+)", reason):
            return f"{option_text}: expected {least[1]} or more"
        if kind := re.search(r"valid (integer|number|float)", reason):
            return f"{option_text}: expected a {'whole ' if kind[1] == 'integer' else ''}number"
        return f"{option_text}: {reason}"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gossamer"
    message = message.strip().rstrip(".")
    if (verb := re.fullmatch(r"No such command '(.*)'", message)) and context is not None:
        message += did_you_mean(verb[1], context.command.list_commands(context))
    return f"{message[:1].lower()}{message[1:]}; `{path} --help` shows how it is used"


def _value(option: str) -> str:
    """Returns the value that the command line gives for an option; typer's messages leave it
    out."""
    for index, word in enumerate(sys.argv):
        if word == option and index + 1 < len(sys.argv):
            return sys.argv[index + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
