#!/usr/bin/env python3
"""Writes src/token/unicode_tables.c: what a tokenizer needs to know of Unicode.

Ids must be those that Hugging Face's tokenizers gives, so the tables follow the versions of Unicode
that its parts have: regular expressions 16.0, is_numeric 17.0, and an NFC that does not know
characters younger than Unicode 9.  The properties come from unicodedata2; which characters the NFC
knows is asked of the library itself.

    pip install tokenizers==0.23.3
    pip install --target u16 unicodedata2==16.0.0
    pip install --target u17 unicodedata2==17.0.0
    tools/unicode_tables.py u16 u17 > src/token/unicode_tables.c
"""
import importlib.util
import glob
import sys

from tokenizers import normalizers

HANGUL_FIRST, HANGUL_LAST = 0xAC00, 0xD7A3
SPACES = set(map(ord, "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000")) | set(
    range(0x2000, 0x200B))
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def unicode_data(folder):
    path = glob.glob(folder + "/unicodedata2*.so")[0]
    spec = importlib.util.spec_from_file_location("unicodedata2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def class_of(c, u16, u17):
    """An enum unicode_class, plus UNICODE_WORD."""
    category = u16.category(chr(c))
    kind = 0
    if category[0] == "L":
        kind = 1
    elif category[0] == "N":
        kind = 2
    elif c in SPACES:
        kind = 3
    elif u17.category(chr(c)) in ("Nd", "Nl", "No"):
        kind = 4
    is_word = category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in (0x200C, 0x200D)
    return kind | (8 if is_word else 0)


def knows_class(nfc, c, combining):
    """Does the library sort this combining mark among others?"""
    if combining > 1:
        marks = chr(c) + "\u0334"  # of class 1
        return nfc.normalize_str("q" + marks) == "q\u0334" + chr(c)
    return nfc.normalize_str("q\u0301" + chr(c)) == "q" + chr(c) + "\u0301"


def write_numbers(kind, name, numbers, per_line=12):
    print(f"\nconst {kind} {name}[] = {{")
    for at in range(0, len(numbers), per_line):
        print("    " + ", ".join(f"0x{n:x}" for n in numbers[at:at + per_line]) + ",")
    print("};")
    print(f"const int {name}_length = {len(numbers)};")


def main():
    u16, u17 = unicode_data(sys.argv[1]), unicode_data(sys.argv[2])
    nfc = normalizers.NFC()

    ranges, last = [], -1
    for c in CODES:
        kind = class_of(c, u16, u17)
        if kind != last:
            ranges += [c << 4 | kind]
            last = kind

    combining, last = [], 0
    for c in CODES + [0x110000]:
        kind = u16.combining(chr(c)) if c < 0x110000 else 0
        if kind and not knows_class(nfc, c, kind):
            kind = 0
        if kind != last:
            combining += [c << 8 | kind]
            last = kind

    decomposed, composed = [], []
    for c in CODES:
        text = u16.decomposition(chr(c))
        if text == "" or text.startswith("<") or HANGUL_FIRST <= c <= HANGUL_LAST:
            continue
        parts = [int(p, 16) for p in text.split()]
        pair = "".join(map(chr, parts))
        if nfc.normalize_str(pair) != u16.normalize("NFC", pair):
            continue  # too young
        decomposed += [c, parts[0], parts[1] if len(parts) > 1 else 0]
        if len(parts) == 2 and u16.normalize("NFC", pair) == chr(c):
            composed += [(parts[0], parts[1], c)]
    composed = [number for triple in sorted(composed) for number in triple]

    print("/*\n * unicode_tables.c -- properties of characters: long tables, written by tools/unicode_tables.py.\n *")
    print(" * They are those of the Unicode versions that Hugging Face's tokenizers has: unicode.h.\n */")
    print('#include "token/unicode.h"')
    print("\n/* Where a class begins: code point << 4 | class. */", end="")
    write_numbers("uint32_t", "unicode_class_table", ranges)
    print("\n/* Where a canonical combining class begins: code point << 8 | class. */", end="")
    write_numbers("uint32_t", "unicode_combining_table", combining)
    print("\n/* Canonical decompositions: character, first, second or 0. */", end="")
    write_numbers("uint32_t", "unicode_decomposition_table", decomposed)
    print("\n/* Canonical compositions, sorted: first, second, character. */", end="")
    write_numbers("uint32_t", "unicode_composition_table", composed)


if __name__ == "__main__":
    main()
