"""``superdl store``: list a store of decoded records, verify it, drop packs from it. Implemented in
:mod:`superdl.store`.

Exit codes beyond the command's own: 1 also if ``verify`` has found something wrong, dropped or not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superdl.options import agreed
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import shown
from superdl.super_wire.sizes import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from superdl.experiments.console import Console
    from superdl.store import Collection, Contents, Removed
    from superdl.super_wire.store import Store

__all__ = ["add_arguments", "run"]

_ACTIONS = {
    "ls": "show what lies in a store: bucket, recipe, packs, records, bytes, when last used; what is free",
    "verify": "check every index, and the header and hash of a share of the records",
    "prune": "drop packs that are not worth their room; never those that somebody has open",
    "clear": "drop all packs and the whole index",
}
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument(
            "store", nargs="?", help="directory or s3://bucket/prefix; default SUPER_STORE, else your cache's"
        )
        if name == "verify":
            action.add_argument("--share", type=float, default=0.01, help="of the records, 0 to 1 (0.01)")
        if name == "prune":
            which = action.add_mutually_exclusive_group(required=True)
            which.add_argument("--bytes", metavar="SIZE", help="keep so much, such as 100gb")
            which.add_argument(
                "--older-than", type=float, metavar="DAYS", help="drop what no job has opened for so long"
            )
        if name in {"verify", "prune", "clear"}:
            action.add_argument("--yes", action="store_true", help="drop without asking")
        action.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Open the store, and run the action."""
    from superdl.experiments.console import Console  # --help does not need these imports
    from superdl.store import store_address
    from superdl.super_wire.redaction import keep_secrets_out_of_logs
    from superdl.super_wire.store import open_store

    keep_secrets_out_of_logs()
    drops = arguments.action in {"prune", "clear"} or (arguments.action == "verify" and arguments.yes)
    store = open_store(store_address(arguments.store, os.environ), create=False, read_only=not drops)
    console = Console(stderr=arguments.json, highlight=False, markup=False, soft_wrap=True)
    actions: dict[str, Callable[[argparse.Namespace, Store, Console], tuple[dict[str, Any], int]]] = {
        "ls": _ls,
        "verify": _verify,
        "prune": _prune,
        "clear": _clear,
    }
    mapping, code = actions[arguments.action](arguments, store, console)
    if arguments.json:
        told = {"store": store.address, "id": store.id, **mapping}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    return code


def _ls(_: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    from superdl.super_wire.store import is_bucket

    contents = _contents(store)
    for one in _by_use(contents):
        decoders = ", ".join(f"{shown(name[:8])} ({count:,})" for name, count in one.decoders.items())
        console.print(
            f"{shown(one.bucket) or 'no pack of it can be read'}\n"
            f"  {_recipe_text(one.recipe)}\n"
            f"  collection {one.name}: {counted(one.records, 'record')}, {_size(one.size_bytes)} in "
            f"{counted(len(one.packs), 'pack')}; decoder {decoders or 'unknown'}; {_used_text(one)}"
        )
    for pack, why in list(contents.broken.items())[:_SHOWN]:
        console.print(f"not readable: {pack}: {shown(str(why))}; superdl store verify drops what is broken")
    free: dict[str, int] = {}
    if not is_bucket(store.address):
        free = {"disk_free_bytes": shutil.disk_usage(store.address).free}
    room = "".join(f"; {_size(size)} free on its disk" for size in free.values())
    console.print(f"{store.address}: {_sum_text(contents)}{room}")
    rows = [
        {**asdict(one), "packs": len(one.packs), "size_bytes": one.size_bytes} for one in _by_use(contents)
    ]
    return {
        "collections": rows,
        "broken": {pack: str(why) for pack, why in contents.broken.items()},
        "users": contents.users,
        **free,
    }, 0


def _verify(arguments: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    from superdl.store import verify
    from superdl.super_wire.store import open_store

    if not 0 <= arguments.share <= 1:
        raise ConfigError(f"--share is a number from 0 to 1, such as 0.01; not {arguments.share:g}")

    def note(text: str) -> None:
        sys.stderr.write(f"{shown(text)}\n")

    seen = verify(store, share=arguments.share, tell=note)
    for one in seen.wrong[:_SHOWN]:
        console.print(f"wrong: {one.pack} {one.sample}: {shown(one.why)}")
    wrong = seen.wrong_packs
    console.print(
        f"{store.address}: {counted(seen.packs, 'pack')}; of {counted(seen.records, 'record')} "
        f"{seen.checked:,} checked; {len(seen.wrong):,} wrong, in {counted(len(wrong), 'pack')}"
    )
    dropped: list[str] = []
    if wrong and (arguments.yes or sys.stdin.isatty()):
        question = f"drop {counted(len(wrong), 'pack')}, to be decoded again when wanted?"
        if agreed(question, yes=arguments.yes, otherwise="--yes drops them"):
            writable = open_store(store.address, create=False)
            for pack in wrong:
                writable.remove(pack)
            dropped = wrong
            console.print(f"dropped: {', '.join(dropped)}")
    elif wrong:
        console.print("nothing was dropped: --yes drops these packs")
    return {**seen.to_mapping(), "dropped": dropped}, int(bool(wrong))


def _prune(arguments: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    from superdl.store.removing import Removed, choose, prune
    from superdl.super_wire.sizes import parse_bytes

    now_s, contents = time.time(), _contents(store)
    if arguments.bytes is not None:
        keep_bytes = parse_bytes(arguments.bytes, "--bytes")
        packs = choose(contents, _decoder(), now_s, keep_bytes=keep_bytes)
    elif arguments.older_than >= 0:
        packs = choose(contents, _decoder(), now_s, older_than_days=arguments.older_than)
    else:
        raise ConfigError(f"--older-than is a number of days, at least 0; not {arguments.older_than:g}")
    for one in _by_use(contents):
        gone = [one.packs[pack] for pack in packs if pack in one.packs]
        spared = "; it is in use and stays" if one.in_use else ""
        console.print(
            f"{shown(one.bucket)} {_recipe_text(one.recipe)}, {_used_text(one)}: {len(gone):,} of "
            f"{counted(len(one.packs), 'pack')} to go, {_size(sum(gone))}{spared}"
        )
    removed = Removed()
    if packs and _agreed(arguments, f"drop {counted(len(packs), 'pack')}?"):
        removed = prune(store, _contents(store), packs)  # read again: the question may have waited for long
        store.sweep(now_s)
    return _tell_removed(store, removed, console)


def _clear(arguments: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    from superdl.store import Removed, clear

    packs = store.packs()
    all_packs = counted(len(packs), "pack")
    question = f"drop all of {store.address}, {all_packs}, {_size(sum(packs.values()))}?"
    removed = clear(store, time.time()) if _agreed(arguments, question) else Removed()
    return _tell_removed(store, removed, console)


def _agreed(arguments: argparse.Namespace, question: str) -> bool:
    return agreed(question, yes=arguments.yes, otherwise="--yes drops without asking")


def _contents(store: Store) -> Contents:
    from superdl.store import contents_of

    return contents_of(store, time.time())


def _decoder() -> str:
    from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint

    return decoder_fingerprint()


def _by_use(contents: Contents) -> list[Collection]:
    return sorted(contents.collections.values(), key=lambda one: (-one.used_s, one.name))


def _recipe_text(recipe: str) -> str:
    """Format the steps of a recipe in one line."""
    try:
        steps = json.loads(recipe)["steps"]
        words = ", ".join(
            f"{step['op']}({', '.join(f'{k}={v}' for k, v in step.items() if k != 'op')})" for step in steps
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return shown(recipe)
    return shown(words) or "decoded, no step"


def _used_text(one: Collection) -> str:
    if one.in_use:
        return "in use now"
    if not one.used_s:
        return "no job has opened it here"
    return time.strftime("last opened %Y-%m-%d %H:%M", time.localtime(one.used_s))


def _size(size: float) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"  # noqa: PLR2004 # a unit


def _sum_text(contents: Contents) -> str:
    all_of = contents.collections.values()
    users = f"; open in {counted(contents.users, 'coordinator')}" if contents.users else ""
    return (
        f"{counted(len(all_of), 'collection')}, {counted(sum(one.records for one in all_of), 'record')}, "
        f"{_size(sum(one.size_bytes for one in all_of))}{users}"
    )


def _tell_removed(store: Store, removed: Removed, console: Console) -> tuple[dict[str, Any], int]:
    told = f"{store.address}: dropped {counted(len(removed.packs), 'pack')}, {_size(removed.size_bytes)}"
    console.print(told if removed.packs else "nothing was dropped")
    return asdict(removed), 0
