"""A pickle interpreter that writes an allocator snapshot into tables of numbers. It executes no code and creates no objects.

It supports the roughly thirty opcodes of plain data, and works on the numbers of ``tables.py``. All other opcodes are refused,
such as those that call a function. No opcode causes more work than the bytes that it has in the file. Source of the opcodes:
the standard library's pickletools.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import lean_entry
from vramscope_server.analysis.snapshot_format.pickle_vm.containers import (
    append_item,
    full_table,
    kind_of_dict,
    pairs_of,
    set_items,
)
from vramscope_server.analysis.snapshot_format.pickle_vm.fields import NO_NUMBER, OVER, number_of
from vramscope_server.analysis.snapshot_format.pickle_vm.opcodes import (
    BROKEN,
    DEEP,
    DO_APPEND,
    DO_APPENDS,
    DO_CONST,
    DO_DICT,
    DO_DICT_OF,
    DO_DUP,
    DO_EMPTY_TUPLE,
    DO_FLOAT,
    DO_GET,
    DO_GLOBAL,
    DO_INT,
    DO_LINE,
    DO_LIST,
    DO_LIST_OF,
    DO_LONG,
    DO_MARK,
    DO_MEMOIZE,
    DO_PERSISTENT,
    DO_POP,
    DO_PUT,
    DO_SETITEM,
    DO_SETITEMS,
    DO_STOP,
    DO_TEXT,
    DO_TUPLE,
    DO_TUPLE1,
    DO_TUPLE3,
    DO_UNKNOWN,
    DONE,
    ELSEWHERE,
    FORBIDDEN,
    FOREIGN,
    LINE,
    MORE,
    OPCODE_FALSE,
    OPCODE_SIGNED,
    OPCODE_TRUE,
    ROOM,
)
from vramscope_server.analysis.snapshot_format.pickle_vm.row_tables import pool_of, word_of
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    AT,
    CONSTANT,
    DICT,
    DICTS,
    EMPTY_LIST,
    FALSE,
    FLAT,
    FLOAT,
    FRAMES_LIST,
    HEIGHT,
    KIND_BITS,
    LIST,
    LISTS,
    MARKED,
    MEMO,
    NEED,
    NEW,
    NONE,
    NOTHING,
    OTHER,
    OTHER_TUPLE,
    POOL,
    POOLS,
    RUNS,
    TAG_BITS,
    TEXT,
    TOO_LARGE,
    TRUE,
    UNSIGNED,
    WHOLE,
    WIDE,
    WIDES,
    WORD,
    WORDS,
)

_TAG_MASK: Final = (1 << TAG_BITS) - 1
_KIND_MASK: Final = (1 << KIND_BITS) - 1
_LARGEST: Final = 1 << 60
_MAX_DEPTH: Final = 64


@lean_entry
def run(t: Any, data: Any, size: int, kind_of: Any, argument_of: Any) -> int:
    """Run the opcodes in ``data[:size]`` from the current position, and return the reason for stopping.

    After MORE and ROOM the next call continues at the same position.
    """
    count, stack, marks, memo = t.count, t.stack, t.marks, t.memo
    height, marked, remembered, at = count[HEIGHT], count[MARKED], count[MEMO], count[AT]
    dicts, lists = count[DICTS], count[LISTS]
    verdict, wanted, rows, following = MORE, 0, 0, at + 1
    while at < size:
        opcode = data[at]
        kind = kind_of[opcode]
        if kind <= DO_PERSISTENT:
            verdict = FORBIDDEN
            if kind == DO_UNKNOWN:
                verdict = BROKEN
            elif kind == DO_GLOBAL:
                verdict = FOREIGN
            elif kind == DO_LINE:
                verdict = LINE
            elif kind == DO_PERSISTENT:
                verdict = ELSEWHERE
            break
        width = argument_of[opcode]
        number = np.int64(0)
        following = at + 1 + abs(width)
        if following > size:
            break
        for byte in range(min(abs(width), 8)):
            number |= np.int64(data[at + 1 + byte]) << (8 * byte)
        if width < 0:
            if number < 0:
                verdict = BROKEN
                break
            following += min(number, _LARGEST)
            if following > size:
                break
        if height + 4 > len(stack):
            verdict, wanted, rows = ROOM, HEIGHT, 4
            break
        floor = marks[marked - 1] if marked else 0
        if kind == DO_GET:
            if number < 0 or number >= remembered or memo[number] & _TAG_MASK == NOTHING:
                verdict = BROKEN
                break
            stack[height] = memo[number]
            height += 1
        elif kind == DO_INT:
            if opcode == OPCODE_SIGNED and number >= np.int64(1) << 31:
                number -= np.int64(1) << 32
            stack[height] = number << TAG_BITS
            height += 1
        elif kind == DO_LONG:
            begin = at + 1 + abs(width)
            length = following - begin
            if length == 0:
                number = np.int64(0)
            else:
                number = np.int64(0)
                for byte in range(min(length, 8)):
                    number |= np.int64(data[begin + byte]) << (8 * byte)
                if length < 8 and number >= np.int64(1) << (8 * length - 1):
                    number -= np.int64(1) << (8 * length)
            above, same = 255 if length and data[following - 1] >= 128 else 0, True
            for byte in range(8, length):
                same = same and data[begin + byte] == above
            fits = same and (length <= 8 or (number < 0) == (above == 255))
            if fits and -_LARGEST <= number < _LARGEST:
                stack[height] = number << TAG_BITS
            else:
                wides = count[WIDES]
                if wides >= len(t.wide):
                    verdict, wanted, rows = ROOM, WIDES, 1
                    break
                t.wide[wides, 0] = WHOLE if fits else UNSIGNED if same and above == 0 else TOO_LARGE
                t.wide[wides, 1] = number
                stack[height] = (wides << TAG_BITS) | WIDE
                count[WIDES] = wides + 1
            height += 1
        elif kind in (DO_MEMOIZE, DO_PUT):
            where = remembered if kind == DO_MEMOIZE else number
            if height <= floor or where < 0 or where > remembered + 1:  # real picklers count from 0 or 1 without gaps
                verdict = BROKEN
                break
            if where >= len(memo):
                verdict, wanted, rows = ROOM, MEMO, 2
                break
            if where > remembered:
                memo[remembered] = NOTHING
            memo[where] = stack[height - 1]
            remembered = max(remembered, where + 1)
        elif kind == DO_TEXT:
            length = following - at - 1 - abs(width)
            if count[WORDS] >= len(t.word_ends):
                verdict, wanted, rows = ROOM, WORDS, 1
                break
            if count[TEXT] + length > len(t.text):
                verdict, wanted, rows = ROOM, TEXT, length
                break
            stack[height] = (
                word_of(t.count, t.word_ends, t.text, t.word_slots, data, following - length, following) << TAG_BITS
            ) | WORD
            height += 1
        elif kind == DO_DICT:
            if dicts >= len(t.dicts):
                verdict, wanted, rows = ROOM, DICTS, 1
                break
            t.dicts[dicts] = NEW
            stack[height] = (dicts << TAG_BITS) | DICT
            dicts += 1
            height += 1
        elif kind == DO_LIST:
            if lists >= len(t.lists):
                verdict, wanted, rows = ROOM, LISTS, 1
                break
            t.lists[lists, 0] = EMPTY_LIST
            t.lists[lists, 1] = t.lists[lists, 2] = -1
            stack[height] = (lists << TAG_BITS) | LIST
            lists += 1
            height += 1
        elif kind == DO_MARK:
            if marked >= _MAX_DEPTH:
                verdict = DEEP
                break
            marks[marked] = height
            marked += 1
        elif kind in (DO_SETITEMS, DO_SETITEM):
            low = floor if kind == DO_SETITEMS else height - 2
            below = (marks[marked - 2] if marked > 1 else 0) if kind == DO_SETITEMS else floor
            if (kind == DO_SETITEMS and not marked) or low <= below or (height - low) % 2:
                verdict = BROKEN
                break
            holder = stack[low - 1]
            if holder & _TAG_MASK != DICT:
                verdict = BROKEN
                break
            is_now = kind_of_dict(t, stack, low, height, holder >> TAG_BITS)
            rows = (height - low) // 2 + (pairs_of(t, holder >> TAG_BITS) if is_now > OTHER else 0)
            wanted = full_table(t, rows)
            if wanted:
                verdict = ROOM
                break
            ended = set_items(t, stack, low, height, holder >> TAG_BITS, is_now)
            if ended != DONE:
                verdict = ended
                break
            height = low
            marked -= kind == DO_SETITEMS
        elif kind in (DO_APPENDS, DO_APPEND):
            low = floor if kind == DO_APPENDS else height - 1
            below = (marks[marked - 2] if marked > 1 else 0) if kind == DO_APPENDS else floor
            if (kind == DO_APPENDS and not marked) or low <= below:
                verdict = BROKEN
                break
            holder = stack[low - 1]
            if holder & _TAG_MASK != LIST:
                verdict = BROKEN
                break
            row = holder >> TAG_BITS
            if count[RUNS] + height - low > len(t.runs):
                verdict, wanted, rows = ROOM, RUNS, height - low
                break
            if t.lists[row, 0] & 3 <= FRAMES_LIST and count[FLAT] + (t.lists[row, 0] >> 2) + height - low > len(t.flat):
                verdict, wanted, rows = ROOM, FLAT, (t.lists[row, 0] >> 2) + height - low
                break
            ended = DONE
            for item in range(low, height):
                ended = append_item(t, stack[item], row)
                if ended != DONE:
                    break
            if ended != DONE:
                verdict = ended
                break
            height = low
            marked -= kind == DO_APPENDS
        elif kind == DO_CONST:
            constant = TRUE if opcode == OPCODE_TRUE else FALSE if opcode == OPCODE_FALSE else NONE
            stack[height] = (constant << TAG_BITS) | CONSTANT
            height += 1
        elif kind >= DO_TUPLE and kind <= DO_EMPTY_TUPLE:
            low = floor if kind == DO_TUPLE else height
            if kind >= DO_TUPLE1 and kind <= DO_TUPLE3:
                low = height - (kind - DO_TUPLE1 + 1)
            if (kind == DO_TUPLE and not marked) or low < (0 if kind == DO_TUPLE else floor):
                verdict = BROKEN
                break
            constant = (OTHER_TUPLE << TAG_BITS) | CONSTANT
            if height - low == 2:
                if count[POOLS] >= len(t.pools):
                    verdict, wanted, rows = ROOM, POOLS, 1
                    break
                first_is, first = number_of(t, stack[low])
                second_is, second = number_of(t, stack[low + 1])
                if NO_NUMBER < first_is < OVER and NO_NUMBER < second_is < OVER:
                    constant = (pool_of(t.count, t.pools, t.pool_slots, first, second) << TAG_BITS) | POOL
            stack[low] = constant
            height = low + 1
            marked -= kind == DO_TUPLE
        elif kind == DO_FLOAT:
            wides = count[WIDES]
            if wides >= len(t.wide):
                verdict, wanted, rows = ROOM, WIDES, 1
                break
            bits = np.int64(0)
            for byte in range(8):
                bits = (bits << 8) | np.int64(data[at + 1 + byte])
            t.wide[wides, 0], t.wide[wides, 1] = FLOAT, bits
            count[WIDES] = wides + 1
            stack[height] = (wides << TAG_BITS) | WIDE
            height += 1
        elif kind == DO_POP:
            if height > floor:
                height -= 1
            elif marked:
                marked -= 1
            else:
                verdict = BROKEN
                break
        elif kind == DO_DUP:
            if height <= floor:
                verdict = BROKEN
                break
            stack[height] = stack[height - 1]
            height += 1
        elif kind in (
            DO_LIST_OF,
            DO_DICT_OF,
        ):  # a whole list or dict from the items above the mark: protocol 0, and some other picklers
            if not marked or (kind == DO_DICT_OF and (height - floor) % 2):
                verdict = BROKEN
                break
            if kind == DO_DICT_OF:
                if dicts >= len(t.dicts):
                    verdict, wanted, rows = ROOM, DICTS, 1
                    break
                t.dicts[dicts] = NEW
                is_now = kind_of_dict(t, stack, floor, height, dicts)
                rows = (height - floor) // 2
                wanted = full_table(t, rows)
                if wanted:
                    verdict = ROOM
                    break
                ended = set_items(t, stack, floor, height, dicts, is_now) if rows else DONE
                stack[floor] = (dicts << TAG_BITS) | DICT
                dicts += 1
            else:
                rows = height - floor
                if lists >= len(t.lists):
                    verdict, wanted, rows = ROOM, LISTS, 1
                    break
                if count[RUNS] + rows > len(t.runs):
                    verdict, wanted = ROOM, RUNS
                    break
                if count[FLAT] + rows > len(t.flat):
                    verdict, wanted = ROOM, FLAT
                    break
                t.lists[lists, 0] = EMPTY_LIST
                t.lists[lists, 1] = t.lists[lists, 2] = -1
                ended = DONE
                for item in range(floor, height):
                    ended = append_item(t, stack[item], lists)
                    if ended != DONE:
                        break
                stack[floor] = (lists << TAG_BITS) | LIST
                lists += 1
            if ended != DONE:
                verdict = ended
                break
            height = floor + 1
            marked -= 1
        elif kind == DO_STOP:
            verdict = DONE if height == 1 and not marked else BROKEN
            break
        at = following
    count[HEIGHT], count[MARKED], count[MEMO], count[AT] = height, marked, remembered, at
    count[DICTS], count[LISTS] = dicts, lists
    count[NEED] = following - at if verdict == MORE else rows
    return verdict if verdict != ROOM else ROOM + (wanted << 8)
