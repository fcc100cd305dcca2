"""Code of users, named on the command line as `package.module:name` or `path/to/file.py:name`.

Modules are found in the current folder, too. Whatever is wrong with the place or the code behind it is an error in the
option that named it.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dbw_runtime.configuration import WrongValueError

T = TypeVar("T")


class Plugin:
    """The function or class that an option names. `names` are short names for places in our own packages."""

    def __init__(self, option: str, place: str, what: str, names: dict[str, str] | None = None) -> None:
        self.option, self.place = option, place
        short = f"one of {', '.join(names)}, or " if names else ""
        self._forms = f"{short}package.module:function or path/to/file.py:function, {what}"
        self._where, colon, self._name = (names or {}).get(place, place).rpartition(":")
        if not (self._where and colon and self._name):
            raise WrongValueError(option, place, self._forms)

    def function(self) -> Callable[..., Any]:
        """The function itself, or class."""
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        code = self._imported()
        if not hasattr(code, self._name):
            functions = [key for key, value in vars(code).items() if _is_function(value) and key[0] != "_"]
            has = f", but {', '.join(functions)}" if 0 < len(functions) <= 20 else ""
            raise self._refusal(f"{self._where} has no {self._name}{has}")
        function: Callable[..., Any] = getattr(code, self._name)
        if not _is_function(function):
            raise self._refusal(f"{self._name} is no function but of type {type(function).__name__}")
        return function

    def build(self, kind: type[T]) -> T:
        """What the function returns, called without arguments."""
        try:
            built = self.function()()
        except WrongValueError:
            raise
        except Exception as error:
            raise self._refusal(f"{self._name}() failed with {_described(error)}") from error
        if not isinstance(built, kind):
            raise self._refusal(f"{self._name}() returned something of type {type(built).__name__}")
        return built

    def _imported(self) -> ModuleType:
        where, is_file = self._where, self._where.endswith(".py")
        try:
            return _imported_file(Path(where).resolve()) if is_file else importlib.import_module(where)
        except Exception as error:
            reason = f"importing {where} failed with {_described(error)}"
            if isinstance(error, FileNotFoundError) and is_file and not Path(where).is_file():
                reason = f"there is no file {Path(where).absolute()}"
            elif isinstance(error, ModuleNotFoundError) and f"{where}.".startswith(f"{error.name}."):
                reason = f"there is no module {error.name}, neither installed nor in {Path.cwd()}"
            raise self._refusal(reason) from error

    def _refusal(self, reason: str) -> WrongValueError:
        return WrongValueError(self.option, self.place, f"{self._forms}; {reason}")


@cache
def _imported_file(path: Path) -> ModuleType:
    """Import a file, once for all options that name it. It may import others from its folder."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = re.sub(r"\W", "_", str(path))
    spec = importlib.util.spec_from_file_location(f"dbw_plugin_{name}", path)
    assert spec is not None  # for a name that ends with .py
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code  # where dataclasses and pickle look for it
    spec.loader.exec_module(code)
    return code


def _is_function(value: object) -> bool:
    """Whether it is meant to be called; objects that happen to be callable, such as a finished model, are not."""
    return callable(value) and (isinstance(value, type) or hasattr(value, "__name__"))


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
