#!/usr/bin/env python3
"""Compares `snug tokenize` with Hugging Face's tokenizers.

usage: tools/check-tokenizers.py TEXT [--strings 100000] [--bytes 10000] [--seed 1] [--fixtures]

TEXT is a plain text file, such as the novels of ELTeC in one file.  Trains tokenizers with the pipelines of
Llama 3, Qwen 2, SmolLM2 and SentencePiece's BPE on it (and with options that other files have), and checks for each,
and for GPT-2 if --gpt2 names a folder with its files, that

    the ids of all of TEXT, in one record and line by line, are the same, with one thread and with all
    the ids of random strings of valid UTF-8 are the same: any characters, and characters that rules look at
    random byte strings come back from byte-level tokenizers
    texts come back as `tokenizers` gives them back

and how fast each is with one thread.  --fixtures writes small tokenizers and their ids to tests/token/fixtures.
Prints TAP; exits with 77 and says why if tokenizers is missing.  Not part of `make test`: see docs/testing.md.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

try:
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)
except ImportError as error:
    print("skip: %s; pip install tokenizers" % error)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SNUG = os.environ.get("SNUG", os.path.join(ROOT, "snug"))
FIXTURES = os.path.join(ROOT, "tests", "token", "fixtures")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

n_done = n_failed = 0


def verdict(name, is_right, why=""):
    global n_done, n_failed
    n_done += 1
    n_failed += not is_right
    print("%sok %d - %s%s" % ("" if is_right else "not ", n_done, name, "" if is_right else ": " + why), flush=True)


def byte_level(pre_tokenizer, normalizer=None, specials=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=list(specials))
    return tokenizer, trainer


def split_first(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece(normalizer=None, pre_tokenizer=None, decoder=None, **model):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoder or decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)] * bool(model.get("byte_fallback"))
    return tokenizer, dict(special_tokens=pieces)


def pipelines():
    """name: (tokenizer, what the trainer takes, added tokens, edit of the file)"""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marks = ["<|begin_of_text|>", "<|im_start|>", "<|im_end|>"]
    legacy = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])

    def without_specials(file):  # <0x..> and <unk> are pieces; <s> and </s> are special tokens
        file["added_tokens"] = [t for t in file["added_tokens"] if not t["content"].startswith("<0x")]

    def legacy_file(file):
        without_specials(file)
        file["pre_tokenizer"] = None
        file["normalizer"] = json.loads(Tokenizer_with(legacy).to_str())["normalizer"]

    def newlines_piece(file):  # two newlines: GPT-2's rule takes them together only at the end of a text
        vocabulary = file["model"]["vocab"]
        vocabulary["\u010a\u010a"] = 1 + max([*vocabulary.values()] + [t["id"] for t in file["added_tokens"]])
        file["model"]["merges"].append(["\u010a", "\u010a"])

    def space_piece(file):  # merges that cross spaces
        legacy_file(file)
        vocabulary, merges = file["model"]["vocab"], file["model"]["merges"]
        for left, right in (("e", "\u2581"), ("e\u2581", "t"), ("\u2581", "\u2581"), ("\u2581\u2581", "\u2581\u2581")):
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
            merges.insert(len(merges) // 2, [left, right])

    odd_tokens = [AddedToken("<|pad|>", lstrip=True, rstrip=True, special=True), AddedToken("[tool]", rstrip=True),
                  AddedToken("[tool]x"),
                  AddedToken("word", single_word=True), AddedToken("\u00e9t\u00e9", normalized=True),
                  AddedToken("<|im_start|>system"), AddedToken("  ")]
    return {
        "gpt2": (*byte_level(plain, specials=["<|endoftext|>"]), [], newlines_piece),
        "llama3": (*byte_level(split_first(LLAMA3), specials=marks, ignore_merges=True), [], None),
        "qwen2": (*byte_level(split_first(QWEN2), normalizers.NFC(), marks), [], None),
        "smollm2": (*byte_level(digits, specials=marks), [], newlines_piece),
        "prefix": (*byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), [], None),
        "added": (*byte_level(split_first(QWEN2), normalizers.NFC(), marks), odd_tokens, None),
        "sentencepiece": (*sentencepiece(byte_fallback=True, fuse_unk=True), [], legacy_file),
        "sentencepiece, spaces": (*sentencepiece(byte_fallback=True, fuse_unk=True), [], space_piece),
        "metaspace first": (*sentencepiece(
            pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
            decoder=decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)]), byte_fallback=True), [], without_specials),
        "metaspace always": (*sentencepiece(
            pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always"),
            decoder=decoders.Metaspace(prepend_scheme="always"), fuse_unk=True), [AddedToken("<x>")], None),
        "metaspace unknown": (*sentencepiece(
            pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always"),
            decoder=decoders.Metaspace(prepend_scheme="always")), [AddedToken("<x>", normalized=False)], None),
    }


def Tokenizer_with(normalizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    return tokenizer


def make(name, text, size, folder):
    tokenizer, trainer, added, edit = pipelines()[name]
    blocks = [text[at : at + 2000] for at in range(0, len(text), 2000)]
    tokenizer.train_from_iterator(blocks, trainers.BpeTrainer(vocab_size=size, show_progress=False, **trainer))
    tokenizer.add_tokens(added)
    path = os.path.join(folder, name.replace(" ", "-").replace(",", "") + ".json")
    file = json.loads(tokenizer.to_str())
    if edit is not None:
        edit(file)
    with open(path, "w") as to:
        json.dump(file, to, ensure_ascii=False, separators=(",", ":"))
    return path, Tokenizer.from_file(path)


def snug(path, data, *flags):
    run = subprocess.run([SNUG, "tokenize", path, *flags], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.decode(errors="replace"))
    return run.stdout


def ids_of(path, texts, *flags):
    data = b"".join(t.encode() + b"\0" for t in texts)
    return [[int(i) for i in line.split()] for line in snug(path, data, "-0", *flags).decode().split("\n")[:-1]]


# What the rules look at: spaces, newlines, contractions, digits, marks that NFC sorts, joined letters.
SPECIAL = list(" \n\r\t\v\f\x85\xa0\u1680\u2000\u2028\u202f\u205f\u3000") + [
    "'s", "'S", "'\u017f", "'ll", "'LL", "'re", "'vE", "'d", "'m", "'t", "don't", "\u2581", "\u2581\u2581", "  ", "   ",
    "\r\n", "\n\n", "12", "1234567", "\u0661\u0662", "\u00b2", "\u2167", "\u4e00", "e\u0301", "\u0323\u0301",
    "\u0301\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u212b", "\u0958", "\u0344", "\U0001f468\u200d\U0001f469",
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<0x41>", "<x>",
    " <s> ", "<|pad|>", " <|pad|>\n", "[tool]", "[tool]x", "word", "sword", " word.", "\u00e9t\u00e9", "e\u0301te\u0301", "_",
    "<|im_start|>system", "\ufeff", "\ufffd", "\x00"[:0], "\x7f", "\x01"]


def random_string(rng):
    kind = rng.randrange(4)
    if kind == 0:  # any character
        codes = (rng.randrange(1, 0x110000 - 2048) for _ in range(rng.randrange(1, 40)))
        return "".join(chr(c if c < 0xD800 else c + 2048) for c in codes)
    if kind == 1:  # of the first plane
        codes = (rng.randrange(1, 0xD800) for _ in range(rng.randrange(1, 40)))
        return "".join(map(chr, codes))
    if kind == 2:
        return "".join(rng.choice(SPECIAL + list("aeiAZz09.,;-")) for _ in range(rng.randrange(1, 30)))
    parts = [rng.choice(SPECIAL) if rng.random() < 0.3 else
             "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x300, 0x370), rng.randrange(0xc0, 0x250))))
                     for _ in range(rng.randrange(1, 8))) for _ in range(rng.randrange(1, 10))]
    return "".join(parts)


def first_difference(texts, ours, theirs):
    for text, a, b in zip(texts, ours, theirs):
        if a != b:
            return "%s: %s, but tokenizers has %s" % (ascii(text)[:200], a[:40], b[:40])
    return "%d and %d texts" % (len(ours), len(theirs))


def compare(name, path, tokenizer, texts, what, *flags):
    ours = ids_of(path, texts, *flags)
    theirs = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    verdict("%s: %s" % (name, what), ours == theirs, first_difference(texts, ours, theirs))
    return theirs


def check_text(name, path, tokenizer, text):
    data = text.encode()
    begin = time.time()
    theirs = tokenizer.encode(text, add_special_tokens=False).ids
    their_seconds = time.time() - begin
    begin = time.time()
    ours = snug(path, data, "-0", "--threads", "1")
    seconds = time.time() - begin
    expected = (" ".join(map(str, theirs)) + "\n").encode()
    verdict("%s: the whole text, one thread; %.2f s, tokenizers %.2f s, ratio %.1f" % (
        name, seconds, their_seconds, their_seconds / seconds), ours == expected)
    verdict("%s: the whole text, all threads" % name, snug(path, data, "-0") == expected)
    again = snug(path, ours, "-0", "--decode")
    verdict("%s: the text comes back" % name, again == data + b"\0" or name not in BYTE_LEVEL or name in CHANGES)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    ours = [[int(i) for i in line.split()] for line in snug(path, data).decode().split("\n")[:-1]]
    theirs = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    verdict("%s: line by line" % name, ours == theirs, first_difference(lines, ours, theirs))


BYTE_LEVEL = ("gpt2", "llama3", "qwen2", "smollm2", "prefix", "added", "GPT-2")
CHANGES = ("qwen2", "added", "prefix")  # texts, by NFC or a space; random bytes are checked where it does not apply


def check_bytes(name, path, rng, n):
    texts = [bytes(rng.randrange(1, 256) for _ in range(rng.randrange(60))) for _ in range(n)]
    data = b"".join(t + b"\0" for t in texts)
    again = snug(path, snug(path, data, "-0"), "-0", "--decode")
    verdict("%s: %d random byte strings come back" % (name, n), again == data)


def check_decoded(name, path, tokenizer, texts, ids):
    """Our decoding, special tokens and all, against theirs."""
    lines = "".join(" ".join(map(str, i)) + "\n" for i in ids).encode()
    ours = snug(path, lines, "-0", "--decode").split(b"\0")[:-1]
    theirs = [t.encode() for t in tokenizer.decode_batch(ids, skip_special_tokens=False)]
    wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs) if a != b and b"\xef\xbf\xbd" not in b]
    verdict("%s: decoding" % name, len(ours) == len(theirs) and not wrong, ascii(wrong[:1]))


def write_fixtures(text, seed):
    """Small tokenizers, with random strings and their ids."""
    rng = random.Random(seed)
    text = text[: 1 << 20]
    os.makedirs(FIXTURES, exist_ok=True)
    for name in pipelines():
        path, tokenizer = make(name, text, 700, FIXTURES)
        texts = ["", " ", "a"] + [random_string(rng) for _ in range(70)] + [
            line for line in text.split("\n") if line][:5] + ["x" * 300 + "the " * 40, "the\n" * 70]
        with open(path[:-5] + ".ids", "w") as to:
            for text_, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False)):
                to.write(json.dumps([text_, encoding.ids], separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--gpt2", help="a folder with GPT-2's two files")
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--bytes", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--fixtures", action="store_true")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8", newline="") as source:
        text = source.read()
    if args.fixtures:
        return write_fixtures(text, args.seed)
    rng = random.Random(args.seed)
    strings = [random_string(rng) for _ in range(args.strings)]
    with tempfile.TemporaryDirectory() as folder:
        names = [n for n in pipelines() if args.only in (None, n)]
        for name in names:
            path, tokenizer = make(name, text[: 8 << 20], 8000, folder)
            ids = compare(name, path, tokenizer, strings, "%d random strings" % len(strings))
            check_decoded(name, path, tokenizer, strings, ids)
            check_text(name, path, tokenizer, text)
            if name in BYTE_LEVEL and name not in CHANGES:
                check_bytes(name, path, rng, args.bytes)
        if args.gpt2 and args.only in (None, "GPT-2"):
            files = [os.path.join(args.gpt2, n) for n in ("vocab.bpe", "encoder.json")]
            tokenizer = Tokenizer(models.BPE.from_file(files[1], files[0]))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.add_special_tokens(["<|endoftext|>"])
            compare("GPT-2", args.gpt2, tokenizer, strings, "%d random strings" % len(strings))
            check_text("GPT-2", args.gpt2, tokenizer, text)
            check_bytes("GPT-2", args.gpt2, rng, args.bytes)
    print("1..%d" % n_done)
    return n_failed > 0


if __name__ == "__main__":
    sys.exit(main())
