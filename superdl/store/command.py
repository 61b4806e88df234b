"""``superdl store``: list and verify a store of decoded records, and drop packs from it.

The exit code is also 1 if ``verify`` found faults, even if the faulty packs were dropped.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superdl.options import confirmed
from superdl.store.contents import Removed, choose, contents_of, prune, store_address, verify
from superdl.super_wire.display import counted, keep_secrets_out_of_logs, shown, sized
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.store import is_bucket, open_store

if TYPE_CHECKING:
    import argparse

    from superdl.experiments.console import Console
    from superdl.store.contents import Collection, Contents
    from superdl.super_wire.store import Store

_ACTIONS = {
    "ls": "show a store's contents (bucket, recipe, packs, records, bytes, last use) and the free space",
    "verify": "check every index, and the header and hash of a share of the records",
    "prune": "drop the least useful packs, but never those in use",
}
_SHOWN = 20
_YES = "use --yes to drop without asking"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar=f"{{{','.join(_ACTIONS)}}}")
    for name, text in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument(
            "store",
            nargs="?",
            help="directory or s3://bucket/prefix (default: SUPER_STORE, or one in your cache directory)",
        )
        if name == "verify":
            action.add_argument(
                "--share", type=float, default=0.01, help="share of records to check, 0 to 1 (default: 0.01)"
            )
        if name == "prune":
            size = "keep at most this much, such as 100gb"
            action.add_argument("--bytes", required=True, metavar="SIZE", help=size)
        if name in {"verify", "prune"}:
            action.add_argument("--yes", action="store_true", help="drop without asking")
        action.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Open the store, and run the action."""
    from superdl.experiments.console import Console
    from superdl.experiments.output import tell_json

    keep_secrets_out_of_logs()
    drops = arguments.action == "prune" or (arguments.action == "verify" and arguments.yes)
    store = open_store(store_address(arguments.store, os.environ), create=False, read_only=not drops)
    console = Console(stderr=arguments.json, highlight=False, markup=False, soft_wrap=True)
    action = {"ls": _ls, "verify": _verify, "prune": _prune}[arguments.action]
    mapping, code = action(arguments, store, console)
    tell_json({"store": store.address, "id": store.id, **mapping}, shown=arguments.json)
    return code


def _ls(_: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    contents = contents_of(store, time.time())
    for collection in _by_use(contents):
        decoders = ", ".join(f"{shown(name[:8])} ({count:,})" for name, count in collection.decoders.items())
        console.print(
            f"{shown(collection.bucket) or 'none of its packs can be read'}\n"
            f"  {_recipe_text(collection.recipe)}\n"
            f"  collection {collection.name}: {counted(collection.records, 'record')}, "
            f"{sized(collection.size_bytes)} in {counted(len(collection.packs), 'pack')}; "
            f"decoder {decoders or 'unknown'}; {_used_text(collection)}"
        )
    for pack, why in list(contents.broken.items())[:_SHOWN]:
        console.print(f"cannot read {pack}: {shown(str(why))}; superdl store verify can drop it")
    free: dict[str, int] = {}
    if not is_bucket(store.address):
        free = {"disk_free_bytes": shutil.disk_usage(store.address).free}
    room = "".join(f"; {sized(size)} free on its disk" for size in free.values())
    console.print(f"{store.address}: {_sum_text(contents)}{room}")
    rows = [
        {**asdict(collection), "packs": len(collection.packs), "size_bytes": collection.size_bytes}
        for collection in _by_use(contents)
    ]
    return {
        "collections": rows,
        "broken": {pack: str(why) for pack, why in contents.broken.items()},
        "users": contents.users,
        **free,
    }, 0


def _verify(arguments: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    if not 0 <= arguments.share <= 1:
        raise ConfigError(f"--share must be a number from 0 to 1, such as 0.01, not {arguments.share:g}")

    def note(text: str) -> None:
        sys.stderr.write(f"{shown(text)}\n")

    verification = verify(store, share=arguments.share, note=note)
    for fault in verification.wrong[:_SHOWN]:
        console.print(f"wrong: {fault.pack} {fault.sample}: {shown(fault.why)}")
    wrong_packs = verification.wrong_packs
    console.print(
        f"{store.address}: {counted(verification.packs, 'pack')}; "
        f"checked {verification.checked:,} of {counted(verification.records, 'record')}; "
        f"{len(verification.wrong):,} wrong, in {counted(len(wrong_packs), 'pack')}"
    )
    dropped: list[str] = []
    if wrong_packs and (arguments.yes or sys.stdin.isatty()):
        question = f"drop {counted(len(wrong_packs), 'pack')}, and decode the samples again when needed?"
        if confirmed(question, yes=arguments.yes, remedy="use --yes to drop them"):
            writable = open_store(store.address, create=False)
            for pack in wrong_packs:
                writable.remove(pack)
            dropped = wrong_packs
            console.print(f"dropped: {', '.join(dropped)}")
    elif wrong_packs:
        console.print("nothing was dropped; use --yes to drop these packs")
    return {**asdict(verification), "dropped": dropped}, int(bool(wrong_packs))


def _prune(arguments: argparse.Namespace, store: Store, console: Console) -> tuple[dict[str, Any], int]:
    from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
    from superdl.super_wire.user_text import parse_bytes

    keep_bytes, now_s = parse_bytes(arguments.bytes, "--bytes"), time.time()
    contents = contents_of(store, now_s)
    packs = choose(contents, decoder_fingerprint(), keep_bytes=keep_bytes)
    for collection in _by_use(contents):
        sizes = [collection.packs[pack] for pack in packs if pack in collection.packs]
        note = "; it is in use and will be kept" if collection.in_use else ""
        console.print(
            f"{shown(collection.bucket)} {_recipe_text(collection.recipe)}, {_used_text(collection)}: "
            f"{len(sizes):,} of {counted(len(collection.packs), 'pack')} to drop, {sized(sum(sizes))}{note}"
        )
    removed = Removed()
    if packs and confirmed(f"drop {counted(len(packs), 'pack')}?", yes=arguments.yes, remedy=_YES):
        contents = contents_of(store, time.time())  # the prompt may have waited a long time
        removed = prune(store, contents, packs)
        store.sweep(now_s)
    line = f"{store.address}: dropped {counted(len(removed.packs), 'pack')}, {sized(removed.size_bytes)}"
    console.print(line if removed.packs else "nothing was dropped")
    return asdict(removed), 0


def _by_use(contents: Contents) -> list[Collection]:
    return sorted(contents.collections.values(), key=lambda collection: (-collection.used_s, collection.name))


def _recipe_text(recipe: str) -> str:
    try:
        steps = json.loads(recipe)["steps"]
        words = ", ".join(
            f"{step['op']}({', '.join(f'{k}={v}' for k, v in step.items() if k != 'op')})" for step in steps
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return shown(recipe)
    return shown(words) or "decoded, no step"


def _used_text(collection: Collection) -> str:
    if collection.in_use:
        return "in use now"
    if not collection.used_s:
        return "no job has opened it here"
    return time.strftime("last opened %Y-%m-%d %H:%M", time.localtime(collection.used_s))


def _sum_text(contents: Contents) -> str:
    collections = contents.collections.values()
    users = f"; open in {counted(contents.users, 'coordinator')}" if contents.users else ""
    return (
        f"{counted(len(collections), 'collection')}, "
        f"{counted(sum(collection.records for collection in collections), 'record')}, "
        f"{sized(sum(collection.size_bytes for collection in collections))}{users}"
    )
