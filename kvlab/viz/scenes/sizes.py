"""Bytes in words."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB")


def size_words(count: float, *, decimal: bool = False) -> str:
    """Three digits and a unit: 838,860,800 -> '800 MiB', or '839 MB' in decimal units, as data sheets count."""
    base, units = (1000.0, _DECIMAL) if decimal else (1024.0, _BINARY)
    unit, value = 0, float(count)
    while abs(value) >= base * (0.9995 if unit else 1) and unit < len(units) - 1:
        value, unit = value / base, unit + 1
    if unit == 0 or abs(value) >= 100:
        return f"{value:,.0f} {units[unit]}"
    written = f"{value:.{1 if abs(value) >= 10 else 2}f}"
    return f"{written.rstrip('0').rstrip('.') if float(written) == int(float(written)) else written} {units[unit]}"
