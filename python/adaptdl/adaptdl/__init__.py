"""AdaptDL's names for `pollux.torch`: scripts that were written for AdaptDL run as they are.

>>> import adaptdl.torch as adl
>>> adl.init_process_group("gloo")
>>> loader = adl.AdaptiveDataLoader(dataset, batch_size=128, shuffle=True)
>>> model = adl.AdaptiveDataParallel(model, optimizer)
>>> for epoch in adl.remaining_epochs_until(90):
...     for inputs, targets in loader:
...         ...

`docs/adaptdl.md` says what differs.
"""

from importlib import metadata as _metadata


def _refuse_two() -> None:
    """Files of two distributions in one package would be a mixture of both."""
    try:
        version = _metadata.version("adaptdl")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"adaptdl {version} and pollux-adaptdl are both installed, and both provide the package `adaptdl`; "
        "run `pip uninstall adaptdl pollux-adaptdl`, then install the one you want"
    )


_refuse_two()

from . import checkpoint, collective, env  # noqa: E402

__all__ = ["checkpoint", "collective", "env"]
