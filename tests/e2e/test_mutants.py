"""tests/mutants without a compiler: the faults it plants, their places, and samples that repeat."""

import importlib.machinery
import importlib.util
import pathlib

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent


def load(name, path):
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


mutants = load("mutants", TESTS / "mutants")
faults = mutants.faults


def planted(body):
    """Every text that a fault makes of the body of a function."""
    head, tail = "void F(int a, int b, bool c) {\n", "\n}\n"
    text = (head + body + tail).encode()
    return {fault.planted(text).decode().removeprefix(head).removesuffix(tail)
            for fault in faults.faults_of("f.cc", text)}


@pytest.mark.parametrize("body, expected", [
    ("c = a < b;", {"c = a <= b;"}),
    ("c = a <= b;", {"c = a < b;"}),
    ("c = a > b;", {"c = a >= b;"}),
    ("c = a == b;", {"c = a != b;"}),
    ("c = a + b;", {"c = a - b;"}),
    ("c = a * b;", {"c = a / b;"}),
    ("c = a << b;", {"c = a >> b;"}),
    ("a += b;", {"a -= b;"}),
    ("c = c && a;", {"c = ((c) || (a));"}),
    ("c = a | b;", {"c = ((a) & (b));"}),
    ("c = -a;", {"c = a;"}),
    ("c = !a;", {"c = a;"}),
    ("c = true;", {"c = false;"}),
    ("a = 7;", {"a = 8;", "a = 6;"}),
    ("a = 0;", {"a = 1;"}),
    ("a = -1;", {"a = 0;", "a = -2;"}),
    ("a = 0x1Fu;", {"a = 32u;", "a = 30u;"}),
    ("a = 1'000;", {"a = 1001;", "a = 999;"}),
    ("c = c ? a : b;", {"c = false && (c) ? a : b;", "c = true || (c) ? a : b;"}),
])
def test_an_operator_or_a_value_changes(body, expected):
    assert planted(body) == expected | {"while (false) " + body}


@pytest.mark.parametrize("body, expected", [
    ("if (c) {}", {"if (false && (c)) {}", "if (true || (c)) {}"}),
    ("if (int d = a; d) {}", {"if (int d = a; false && (d)) {}", "if (int d = a; true || (d)) {}"}),
    # Only a time limit would notice a loop that never ends.
    ("while (c) {}", {"while (false && (c)) {}"}),
    ("for (; c;) {}", {"for (; false && (c);) {}"}),
    ("Call(a);", {"while (false) Call(a);"}),
    ("for (;;) break;", {"for (;;) while (false) break;"}),
    ("return;", {"while (false) return;"}),
])
def test_a_condition_holds_never_or_always_and_a_statement_never_runs(body, expected):
    assert planted(body) == expected


def test_operands_stay_together_when_an_operator_changes():
    assert "c = ((a && b) || (c));" in planted("c = a && b && c;")


def test_each_field_of_an_aggregate_is_left_out():
    found = planted("P p{.x = a, .y = b, .z = c};")
    assert found == {"P p{.y = b, .z = c};", "P p{.x = a, .z = c};", "P p{.x = a, .y = b};"}
    assert planted("P p{.x = a};") == {"P p{};"}


@pytest.mark.parametrize("body", [
    "// 1 < 2 && true",
    "/* a + 1; */",
    "static_assert(sizeof(int) == 4 && true);",
    "std::array<int, 3> d;",
    "int d[3];",
    "enum E { k = 3 };",
    "using A = B<1 + 2, true>;",
    "assert(a > 3 && b < 2);",
    'Log(LogLevel::kInfo, "1 < 2", {{"a", a + 1}});',
    "d.reserve(a + 1);",
    "return d;",
    "if (auto* d = Find(a)) {}",
    "if constexpr (c) {}",
    'const auto d = "1 < 2 && true";',
    "const char d = '1';",
])
def test_what_no_test_can_notice_is_left_alone(body):
    assert planted(body) == set()


def test_directives_are_left_alone_and_code_between_them_is_not():
    text = b'#pragma once\n#include "a/1.h"\n#define K 3\n#if K > 2\nint a = 5;\n#endif\n'
    assert [f.what for f in faults.faults_of("f.h", text)] == ["5 becomes 4", "5 becomes 6"]


def test_parameters_of_templates_are_left_alone():
    assert faults.faults_of("f.h", b"template <int N = 3, bool = true> struct S {};\n") == []


def test_only_wanted_lines():
    text = b"int a = 1;\nint b = 2;\nint c = 3;\n"
    assert {f.line for f in faults.faults_of("f.cc", text)} == {1, 2, 3}
    assert {f.line for f in faults.faults_of("f.cc", text, {2})} == {2}


def test_the_same_seed_draws_the_same_faults_and_one_a_line_first():
    found = faults.faults_of("f.cc", b"".join(b"int a%d = %d;\n" % (i, i + 1) for i in range(40)))
    assert len(found) == 80
    drawn = faults.sample(found, 40, seed=5)
    assert drawn == faults.sample(list(reversed(found)), 40, seed=5)
    assert drawn != faults.sample(found, 40, seed=6)
    assert drawn[:10] == faults.sample(found, 10, seed=5)
    assert {f.line for f in drawn} == set(range(1, 41))
    assert sorted(faults.sample(found, None, seed=5)) == found


def test_changed_lines_of_a_diff():
    diff = ("--- a/server/a.cc\n+++ b/server/a.cc\n@@ -1,2 +3 @@ void F() {\n-x\n-y\n+z\n"
            "@@ -9 +10,2 @@\n-x\n+y\n+z\n--- a/server/b.cc\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n")
    assert faults.changed_lines(diff) == {"server/a.cc": {3, 10, 11}}


def test_a_fault_reads_as_a_diff():
    text = b"int a = 1;\nint b = 2;\n"
    fault = next(f for f in faults.faults_of("server/a.cc", text) if f.what == "2 becomes 3")
    assert fault.diff(text) == ("--- a/server/a.cc\n+++ b/server/a.cc\n@@ -1,2 +1,2 @@\n"
                                " int a = 1;\n-int b = 2;\n+int b = 3;\n")


def test_faults_of_our_own_code_are_still_syntax():
    path = min((TESTS.parent / "server").glob("*.cc"))
    text = path.read_bytes()
    found = faults.faults_of("server/a.cc", text)
    assert len(found) > 50
    broken = [f for f in faults.sample(found, 100, seed=0)
              if faults.parse(f.planted(text)).has_error and not faults.parse(text).has_error]
    assert broken == []


def test_faults_are_listed_without_building(monkeypatch, capsys):
    folder = TESTS.parent / "server"
    monkeypatch.setattr("sys.argv", ["mutants", "--list", "--sample", "7", str(folder)])
    assert mutants.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(line.startswith("server/") for line in lines)


def test_a_folder_stands_for_its_sources_and_headers():
    found = mutants.places([TESTS.parent / "server"], None)
    assert {"server/batcher.cc", "server/batcher.h"} <= set(found)
    assert all(path.startswith("server/") and path.endswith((".cc", ".h")) for path in found)


class Answers(mutants.Copy):
    """A copy without files, whose commands give prepared answers in order."""

    def __init__(self, *answers):
        super().__init__(jobs=1, prefix="")
        self.answers = list(answers)
        self.ran = []

    def run(self, command, limit):
        self.ran.append(command)
        return self.answers.pop(0)


PASSED = (True, "")


@pytest.mark.parametrize("answers, failure", [
    ([PASSED], ""),
    ([(False, "a.cc:3:1: error: no 'x'")], "did not compile"),
    ([(False, "c++: fatal error: Killed signal terminated program cc1plus"), PASSED], ""),
    ([(False, "cc1plus: out of memory allocating 65536 bytes")] * 2, "not built"),
    ([(False, "cc1plus: out of memory"), (False, "error: no 'x'")], "did not compile"),
])
def test_a_build_without_memory_is_not_one_that_does_not_compile(answers, failure):
    assert Answers(*answers).failed_build("kernels_tests") == failure


GTEST = (False, "[  FAILED  ] Isa/Plan.Ends/0, where GetParam() = 1 (9 ms)\n[  FAILED  ] 1 test")


def test_a_failure_counts_once_unless_it_may_be_one_of_time():
    copy = Answers(GTEST)
    assert copy.noticed(mutants.Step("all", 60)) == "Isa/Plan.Ends/0"
    assert copy.ran == ["all"]


def test_a_failure_that_may_be_one_of_time_counts_when_it_comes_again():
    timing = mutants.Step("all", 60, "one %s")
    copy = Answers(GTEST, GTEST)
    assert copy.noticed(timing) == "Isa/Plan.Ends/0"
    assert copy.ran == ["all", "one Isa/Plan.Ends/0"]
    copy = Answers(GTEST, PASSED, PASSED)
    assert copy.noticed(timing) == ""
    assert copy.ran == ["all", "one Isa/Plan.Ends/0", "all"]
    assert Answers((False, ""), (False, "")).noticed(timing) == "a crash"


def test_names_of_failed_tests():
    assert mutants.failed_test("..F\nFAILED tests/e2e/test_a.py::test_b[c] - assert 1\n") == (
        "tests/e2e/test_a.py::test_b[c]")
    assert mutants.failed_test("[  FAILED  ] A.B (3 ms)\n[  FAILED  ] 2 tests") == "A.B"
    assert mutants.failed_test("Segmentation fault") == ""


def test_every_target_that_covers_a_folder_exists():
    lists = [*TESTS.parent.glob("*/CMakeLists.txt"), *TESTS.parent.glob("client/*/CMakeLists.txt")]
    built = "".join(path.read_text() for path in lists)
    for suite in mutants.SUITES.values():
        for targets, _ in suite:
            for target in targets.split():
                assert target in built
