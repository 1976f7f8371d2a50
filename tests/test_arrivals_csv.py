"""Arrival traces are read strictly: what is not a trace is refused by file and line."""

from datetime import datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cli import UserError
from course_lib.load.arrivals_csv import TraceRow, read_trace

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    """trace(text or bytes) -> a file with it."""
    file = tmp_path_factory.mktemp("trace") / "t.csv"

    def write(text):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def test_rows_are_sorted_by_arrival_and_those_that_arrive_together_keep_their_order(trace):
    rows = read_trace(trace(HEADER + "2,10,1\n0.5,20,2\n2,30,3\n0,40,4\n"))
    assert rows == [
        TraceRow(0, 40, 4),
        TraceRow(500_000, 20, 2),
        TraceRow(2_000_000, 10, 1),
        TraceRow(2_000_000, 30, 3),
    ]


def test_a_prefix_id_may_be_given_or_empty(trace):
    text = "arrival_s,prompt_tokens,output_tokens,prefix_id\n0,8,1,chat-7\n0,8,1,\n"
    assert [row.prefix_id for row in read_trace(trace(text))] == ["chat-7", ""]


def test_blank_lines_spaces_a_byte_order_mark_quotes_and_crlf_change_nothing(trace):
    plain = read_trace(trace(HEADER + "1.5,8,1\n2,9,3\n"))
    text = '\ufeffarrival_s, prompt_tokens ,output_tokens\r\n\r\n 1.5 ,"8",1\r\n2,9,3'
    assert read_trace(trace(text)) == plain


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1))
def test_what_was_written_is_read_to_the_microsecond(trace, rows):
    lines = [f"{us // 10**6}.{us % 10**6:06},{prompt},{output}\n" for us, prompt, output in rows]
    assert read_trace(trace(HEADER + "".join(lines))) == sorted((TraceRow(*row) for row in rows), key=lambda r: r[0])


@given(st.decimals(0, 10**6, places=9))
def test_parts_of_a_microsecond_are_cut_off(trace, seconds):
    (row,) = read_trace(trace(f"{HEADER}{seconds:f},1,1\n"))
    assert row.arrival_us == int(Fraction(seconds) * 10**6)


def test_the_published_azure_traces_are_read_as_they_are(trace):
    # Rows of AzureLLMInferenceTrace_conv.csv (2023); the form of the 2024 files' times
    text = AZURE + "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:46.6805900,374,44\n"
    assert read_trace(trace(text)) == [TraceRow(0, 374, 44), TraceRow(4_314_579, 396, 109)]
    text = AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,1,1\n"
    assert read_trace(trace(text)) == [TraceRow(0, 2162, 5), TraceRow(990_070, 1, 1)]


@given(st.lists(st.timedeltas(timedelta(0), timedelta(days=400)), min_size=1, max_size=5))
def test_azure_times_are_counted_from_the_earliest(trace, offsets):
    start = datetime(2023, 12, 31, 23, 59, 59)  # over the end of a year, and a 29 February
    text = AZURE + "".join(f"{(start + offset).isoformat(' ')},1,1\n" for offset in offsets)
    expected = sorted((offset - min(offsets)) // timedelta(microseconds=1) for offset in offsets)
    assert [row.arrival_us for row in read_trace(trace(text))] == expected


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "the columns are ''"),
        ("a,b,c\n0,1,1\n", 1, "the columns are 'a,b,c'"),
        ("arrival_s,output_tokens,prompt_tokens\n0,1,1\n", 1, "wanted arrival_s,prompt_tokens,output_tokens"),
        (HEADER + "0,1\n", 2, "2 fields, but the header has 3"),
        (HEADER + "0,1,1,x\n", 2, "4 fields, but the header has 3"),
        (HEADER + "0,1,1\n\n-1,1,1\n", 4, "arrival_s is '-1'"),
        (HEADER + "nan,1,1\n", 2, "arrival_s is 'nan'"),
        (HEADER + "inf,1,1\n", 2, "arrival_s is 'inf'"),
        (HEADER + "1e3,1,1\n", 2, "arrival_s is '1e3'"),
        (HEADER + ".,1,1\n", 2, "arrival_s is '.'"),
        (HEADER + "٣,1,1\n", 2, "arrival_s is"),
        (HEADER + "0,0,1\n", 2, "prompt_tokens is '0'"),
        (HEADER + "0,-5,1\n", 2, "prompt_tokens is '-5'"),
        (HEADER + "0,1.0,1\n", 2, "prompt_tokens is '1.0'"),
        (HEADER + "0,1,\n", 2, "output_tokens is ''"),
        (HEADER + f"0,1,{10**9}\n", 2, "output_tokens is '1000000000'"),
        (HEADER + '0,1,"1\n', 2, "not CSV"),
        (AZURE + "18:15:46,1,1\n", 2, "TIMESTAMP is '18:15:46'"),
        (AZURE + "2023-02-30 18:15:46,1,1\n", 2, "TIMESTAMP '2023-02-30 18:15:46'"),
        (AZURE + "2023-02-20 18:15:46,0,1\n", 2, "ContextTokens is '0'"),
    ],
)  # fmt: skip
def test_the_first_row_that_is_no_request_is_named_by_file_and_line(trace, text, line, why):
    file = trace(text)
    with pytest.raises(UserError) as refused:
        read_trace(file)
    assert f"{file}, line {line}: " in str(refused.value) and why in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_long_prefix_id_a_file_without_requests_and_one_that_is_no_text_are_refused(trace):
    for text, why in (
        ("arrival_s,prompt_tokens,output_tokens,prefix_id\n0,1,1," + "x" * 101, "101 characters"),
        (HEADER, "no requests"),
        (HEADER.encode() + b"0,1,\xff\n", "UTF-8"),
    ):
        with pytest.raises(UserError, match=why):
            read_trace(trace(text))
