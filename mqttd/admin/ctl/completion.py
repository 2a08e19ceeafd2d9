"""`mqttd-ctl completion bash|zsh|fish`: what a shell needs to complete its commands.

Printed from the command line itself, so that it has every command and option there is. Part of
`mqttd.admin.ctl.main`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["add_command", "script"]

_BASH: Final = """\
# bash: eval "$(mqttd-ctl completion bash)", in ~/.bashrc
_mqttd_ctl() {
    local word path=""
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$word" in -*) ;; *) path="$path $word" ;; esac
    done
    local words=""
    case "$path" in
%s
    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _mqttd_ctl mqttd-ctl
"""


def add_command(add: Callable[..., Any], commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add `completion`, with `add` of `mqttd.admin.ctl.main`; `parser` is the whole command
    line."""
    command = add(commands, "completion", _completion, "Print completion for a shell.")
    command.add_argument("shell", choices=("bash", "zsh", "fish"))
    command.set_defaults(parser=parser)


def _completion(options: argparse.Namespace) -> None:
    print(script(options.parser, options.shell), end="")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion of a command line for a shell."""
    if shell == "fish":
        return "".join(_fish(parser, ()))
    cases = "\n".join(
        f"""    "{"".join(f" {word}" for word in path)}") words="{" ".join(words)}" ;;"""
        for path, words in _words(parser, ())
    )
    text = _BASH % cases
    if shell == "zsh":
        head = '# zsh: eval "$(mqttd-ctl completion zsh)", in ~/.zshrc\n'
        return f"{head}autoload -U +X bashcompinit && bashcompinit\n{text.partition(chr(10))[2]}"
    return text


def _words(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """What may stand behind the words of `path`, for every path there is."""
    below = _commands(parser)
    options = [text for action in parser._actions for text in action.option_strings]
    yield path, [*below, *(text for text in options if text.startswith("--"))]
    for name, child in below.items():
        yield from _words(child, (*path, name))


def _fish(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[str]:
    if not path:
        yield "# fish: mqttd-ctl completion fish | source, in config.fish\n"
    below = _commands(parser)
    when = [f"__fish_seen_subcommand_from {word}" for word in path]
    if below:
        when.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
    for name, child in below.items():
        text = (child.description or "").replace("'", "\\'")
        yield f"complete -c mqttd-ctl -f -n '{'; and '.join(when)}' -a {name} -d '{text}'\n"
    for name, child in below.items():
        yield from _fish(child, (*path, name))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found
