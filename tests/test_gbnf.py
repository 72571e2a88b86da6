"""Grammars: read as llama.cpp reads them, refused with the line that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parse_local.errors import GrammarError
from parse_local.gbnf import check_grammar
from parse_local.llama.grammar import Grammar
from parse_local.llama.model import Model

GOOD = [
    'root ::= "a"',
    "# a comment\n"
    'root ::= a |\n  b # another\na ::= [a-z0-9_]+ "\\n"\nb ::= (\n"x"\n| [^\\]"]\n)? .\n',
    'root ::= "\\x41\\u00e9\\U0001F600\\\\\\"" [\\-\\[]{2} "z"{0,3} "y"{1,}',
    'root ::= <|im_start|> !<|im_end|> "x"*',
    'root ::= "(" root ")" | ""',
    'root ::= item ("," item)*\nitem ::= [0-9]{1,3}',
    'root ::= ""',
    'root ::= ("a"? | "b"?){6} ("c"? "d"*){200}',  # empty in 64 ways, and in one
]
BAD = {
    "": "grammar is empty or no text",
    'r ::= "a"': "no rule `root`",
    "root ::= a": "line 1: there is no rule `a`",
    'root ::= "a"\nb ::= "x" c': "line 2: there is no rule `c`",
    'root ::= "a': "line 1: expected a text in quotes",
    'root ::= "\\q"': "expected a text in quotes",
    "root ::= [a-z": "expected characters in brackets",
    'root ::= ("a"': "expected a closing parenthesis",
    'root ::= "a" )': "makes no sense here",
    "root = x": "expected ::=",
    'root ::= "a"\n  "b"': "line 2: expected the name of a rule",
    "root ::= *": "nothing in front of '*'",
    'root ::= "a"{5,2}': "fewer than its least",
    'root ::= "a"{3001}': "more often than 2000 times",
    'root ::= root "x" | "y"': "begins with itself",
    'root ::= a\na ::= b "x" | "y"\nb ::= a': "begins with itself",
    # llama.cpp does not see these two and never comes back.
    'root ::= a root "x" | "y"\na ::= b\nb ::= | "z"': "begins with itself",
    'root ::= (a "x"?)*\na ::= b b\nb ::= "y"?': "what may be empty is repeated",
    "root ::= " + "(" * 200 + '"a"' + ")" * 200: "parentheses are open",
    'root ::= "' + "a" * 200_000 + '"': "200,000 are the most",
    'root ::= "a\0"': "grammar is empty or no text",
    'root ::= "a"' + "?" * 5000: "nested too deeply",
    # 2 ** 14 ways; llama.cpp takes minutes for one token.
    "root ::= " + "e " * 14 + '\ne ::= "" | ""': "empty in more than 100 ways",
    'root ::= ("" | ""){14}': "empty in more than 100 ways",
    'root ::= "x" e\ne ::= ("a"? | "b"?){7}': "`e` of the grammar may be empty in more than 100",
}


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Model:
    return Model(tiny(seed=1))


@pytest.mark.parametrize("text", GOOD)
def test_what_llama_cpp_takes_is_taken(model: Model, text: str) -> None:
    check_grammar(text)
    Grammar(model, text).close()


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said(text: str) -> None:
    with pytest.raises(GrammarError, match=BAD[text]):
        check_grammar(text)


def test_what_only_llama_cpp_can_know(model: Model) -> None:
    with pytest.raises(GrammarError, match=r"llama\.cpp refuses the grammar"):
        Grammar(model, "root ::= <no-such-token>")


def test_a_long_chain_of_rules_does_not_overflow_the_stack(model: Model) -> None:
    n = 2990
    rules = ["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(n)), f'r{n} ::= "a"']
    place = Grammar(model, "\n".join(rules))
    assert place.n_allowed(model.tokenize("a")) == 1
    place.close()
    with pytest.raises(GrammarError, match="3,001 rules; 3,000 are the most"):
        check_grammar("\n".join([*rules, *(f'x{i} ::= "x"' for i in range(3001 - len(rules)))]))
    rules[-1] = f'r{n} ::= "a"?'  # all of them may be empty
    check_grammar("\n".join(rules))
    with pytest.raises(GrammarError, match="what may be empty is repeated"):
        check_grammar("\n".join(["root ::= r0*", *rules[1:]]))
