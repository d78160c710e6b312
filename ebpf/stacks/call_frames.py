"""Call frame information of one function, run: where its caller's frame is, for each place in it.

Of all registers only three are followed: the stack pointer, the frame pointer and the return address. What is read is
of others: a program of n bytes takes n turns at most and remembers `MAX_REMEMBERED` states.

Source: DWARF 5, section 6.4; Linux Standard Base 5, section 10.6; DWARF for the Arm 64-bit architecture.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rootwalk.ebpf.stacks.dwarf_numbers import (
    HALF,
    WORD,
    read_pointer,
    read_signed,
    read_unsigned,
    skip_pointer,
)
from rootwalk.ebpf.stacks.unwind_rules import END, UNFOLLOWED, Cfa, Kept, Rule
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["AARCH64", "X86_64", "Common", "Programs", "Registers"]

MAX_REMEMBERED = 64
MAX_ALIGN = 64
# Functions of real libraries are told alike by some thousands of rules.
REMEMBERED_RULES = 65_536
BREG0, DEREF = 0x70, 0x06
# DW_OP_breg7 8, breg16 0, lit15, and, then lit<n>, ge, lit3, shl, plus: entries of a PLT push once, after n bytes.
PLT_HEAD, PLT_TAIL = bytes.fromhex("770880003f1a"), bytes.fromhex("2a332422")
LIT0 = 0x30
MAX_OFFSET = (1 << 31) - 1


class Registers(NamedTuple):
    """DWARF's numbers of the three registers.

    Attributes:
        stack: Stack pointer.
        frame: Frame pointer.
        back: Return address.
        back_is_pushed: Whether each call leaves the return address at the CFA - 8.
    """

    stack: int
    frame: int
    back: int
    back_is_pushed: bool


X86_64 = Registers(7, 6, 16, back_is_pushed=True)
AARCH64 = Registers(31, 29, 30, back_is_pushed=False)

# Of the CFA: register or one of the three below, offset. Of a register: member of Kept, offset.
Pair = tuple[int, int]
State = tuple[Pair, Pair, Pair]
PLT_CFA, LOADED_CFA = -2, -3
NO_CFA: Pair = (-1, 0)
SAME: Pair = (int(Kept.SAME), 0)
UNDEFINED: Pair = (int(Kept.UNDEFINED), 0)
UNSUPPORTED: Pair = (int(Kept.UNSUPPORTED), 0)
AT_CFA = int(Kept.AT_CFA)
PUSHED: Pair = (AT_CFA, -8)
NOTHING: State = (NO_CFA, SAME, SAME)


class Common(NamedTuple):
    """What the functions of a common information entry (CIE) share.

    Attributes:
        code_align: Bytes of a unit of advance.
        data_align: Bytes of a unit of offset.
        encoding: Of addresses, DW_EH_PE_*.
        is_augmented: Whether entries tell the size of what else they hold.
        state: At a function's first byte.
    """

    code_align: int
    data_align: int
    encoding: int
    is_augmented: bool
    state: State


class Programs:
    """Runs programs for one architecture. Remembers rules, so that equal ones are one object."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers
        self._rules: dict[State, Rule] = {}
        self._equal: dict[Rule, Rule] = {UNFOLLOWED: UNFOLLOWED, END: END}

    def read_common(self, data: bytes) -> Common:
        """Return a CIE's content.

        Args:
            data: It, behind its length and its id.

        Raises:
            DecodeError: If it is damaged or of a form that is not known here.
        """
        try:
            return self._read_common(data)
        except (IndexError, struct.error):
            raise DecodeError("cannot read a CIE: saw its end too early") from None

    def run(
        self, program: bytes, common: Common, size: int, start: int = 0, address: int = 0
    ) -> list[tuple[int, Rule]]:
        """Return the rules of a function, each with the place in it from where it holds.

        Args:
            program: The instructions of its entry (FDE).
            common: What the entry shares with others.
            size: Bytes of the function: what is told of places behind it is left out.
            start: Its address.
            address: Of the program's first byte.

        Raises:
            DecodeError: If an instruction is cut off or not known.
        """
        try:
            return self._run(program, common, common.state, size, start, address)[0]
        except (IndexError, struct.error):
            raise DecodeError("cannot read an FDE: saw its end inside an instruction") from None

    def _read_common(self, data: bytes) -> Common:
        version = data[0]
        text_end = data.find(b"\0", 1)
        if version not in (1, 3, 4) or text_end < 0:
            raise DecodeError(f"cannot read a CIE: saw version {version}; needs 1, 3 or 4")
        text = data[1:text_end]
        at = text_end + (3 if version == 4 else 1)
        code_align, at = read_unsigned(data, at)
        data_align, at = read_signed(data, at)
        back, at = (data[at], at + 1) if version == 1 else read_unsigned(data, at)
        if not 0 < code_align <= MAX_ALIGN or not 0 < abs(data_align) <= MAX_ALIGN:
            raise DecodeError(f"cannot read a CIE: saw units of {code_align}, {data_align} bytes")
        if back != self._registers.back:
            raise DecodeError(f"cannot read a CIE: saw the return address in register {back}")
        encoding = 0
        if text[:1] == b"z":
            size, at = read_unsigned(data, at)
            end = at + size
            for letter in text[1:].decode("latin-1"):
                if letter == "R":
                    encoding = data[at]
                    at += 1
                elif letter == "L":
                    at += 1
                elif letter == "P":
                    at = skip_pointer(data, at)
                elif letter not in "SBG":
                    raise DecodeError(f"cannot read a CIE: saw augmentation {letter!r}")
            if at > end or end > len(data):
                raise DecodeError("cannot read a CIE: saw an augmentation beyond its end")
            at = end
        elif text:
            raise DecodeError(f"cannot read a CIE: saw augmentation {text[:16]!r}")
        common = Common(code_align, data_align, encoding, text[:1] == b"z", NOTHING)
        return common._replace(state=self._run(data[at:], common, NOTHING, 1)[1])

    def _run(
        self,
        program: bytes,
        common: Common,
        initial: State,
        size: int,
        start: int = 0,
        address: int = 0,
    ) -> tuple[list[tuple[int, Rule]], State]:
        code_align, data_align = common.code_align, common.data_align
        _, frame_register, back_register, _ = self._registers
        cfa, frame, back = initial
        remembered: list[State] = []
        rows: list[tuple[int, Rule]] = []
        told: Rule | None = None
        place = at = 0
        end = len(program)
        while at < end:
            code = program[at]
            at += 1
            kind = code & 0xC0
            if kind == 0x80:  # DW_CFA_offset
                if program[at] < 0x80:
                    value = program[at]
                    at += 1
                else:
                    value, at = read_unsigned(program, at)
                if code & 63 == frame_register:
                    frame = AT_CFA, value * data_align
                elif code & 63 == back_register:
                    back = AT_CFA, value * data_align
                continue
            if kind == 0xC0:  # DW_CFA_restore
                if code & 63 == frame_register:
                    frame = initial[1]
                elif code & 63 == back_register:
                    back = initial[2]
                continue
            if kind == 0x40:  # DW_CFA_advance_loc
                step = code & 63
            elif code == 0x0E:  # DW_CFA_def_cfa_offset
                value, at = read_unsigned(program, at)
                cfa = (cfa[0], value) if cfa[0] >= 0 else NO_CFA
                continue
            elif code == 0x01:  # DW_CFA_set_loc
                where, at = read_pointer(program, at, common.encoding, address)
                step = (where - start - place) // code_align
                if step < 0:
                    raise DecodeError("cannot read an FDE: saw places that go back")
            elif code == 0x02:  # DW_CFA_advance_loc1
                step = program[at]
                at += 1
            elif code == 0x03:  # DW_CFA_advance_loc2
                step = HALF.unpack_from(program, at)[0]
                at += 2
            elif code == 0x04:  # DW_CFA_advance_loc4
                step = WORD.unpack_from(program, at)[0]
                at += 4
            elif code == 0x0A:  # DW_CFA_remember_state
                if len(remembered) == MAX_REMEMBERED:
                    raise DecodeError(f"cannot read an FDE: saw {MAX_REMEMBERED} states remembered")
                remembered.append((cfa, frame, back))
                continue
            elif code == 0x0B:  # DW_CFA_restore_state
                if not remembered:
                    raise DecodeError("cannot read an FDE: saw no state to restore")
                cfa, frame, back = remembered.pop()
                continue
            elif 0x05 <= code <= 0x09:  # of a register: restore, undefined, and so on
                register, at = read_unsigned(program, at)
                now = self._keep(code, program, at, data_align)
                at = now[1]
                if register == frame_register:
                    frame = now[0] or initial[1]
                elif register == back_register:
                    back = now[0] or initial[2]
                continue
            else:
                (cfa, frame, back), at = self._run_rare(
                    code, program, at, data_align, (cfa, frame, back)
                )
                continue
            if step:
                state = cfa, frame, back
                rule = self._rules.get(state) or self._rule(state)
                if rule is not told:
                    rows.append((place, rule))
                    told = rule
                place += step * code_align
                if place >= size:
                    return rows, state
        state = cfa, frame, back
        rule = self._rules.get(state) or self._rule(state)
        if rule is not told:
            rows.append((place, rule))
        return rows, state

    def _keep(self, code: int, program: bytes, at: int, data_align: int) -> tuple[Pair | None, int]:
        """Return what one of the instructions 5 to 9 says of its register; None for what it was at first."""
        if code == 0x05:  # DW_CFA_offset_extended
            value, at = read_unsigned(program, at)
            return (AT_CFA, value * data_align), at
        if code == 0x09:  # DW_CFA_register
            return UNSUPPORTED, read_unsigned(program, at)[1]
        # DW_CFA_restore_extended, undefined, same_value
        return {0x06: None, 0x07: UNDEFINED, 0x08: SAME}[code], at

    def _run_rare(
        self, code: int, program: bytes, at: int, data_align: int, state: State
    ) -> tuple[State, int]:
        cfa, frame, back = state
        if code == 0x00 or (code == 0x2D and not self._registers.back_is_pushed):
            return state, at  # DW_CFA_nop, DW_CFA_AARCH64_negate_ra_state
        register, next_at = read_unsigned(program, at)
        kept: Pair | None = None
        if code == 0x0C:  # DW_CFA_def_cfa
            value, at = read_unsigned(program, next_at)
            cfa = register, value
        elif code == 0x0D:  # DW_CFA_def_cfa_register
            cfa, at = (register, cfa[1]) if cfa[0] >= 0 else NO_CFA, next_at
        elif code == 0x0F:  # DW_CFA_def_cfa_expression
            cfa, at = self._read_cfa(program, next_at, register), next_at + register
        elif code == 0x12:  # DW_CFA_def_cfa_sf
            value, at = read_signed(program, next_at)
            cfa = register, value * data_align
        elif code == 0x13:  # DW_CFA_def_cfa_offset_sf
            value, at = read_signed(program, at)
            cfa = (cfa[0], value * data_align) if cfa[0] >= 0 else NO_CFA
        elif code == 0x2E:  # DW_CFA_GNU_args_size
            at = next_at
        elif code in (0x10, 0x16):  # DW_CFA_expression, val_expression
            size, at = read_unsigned(program, next_at)
            is_place = code == 0x10
            kept = self._read_kept(program, at, size) if is_place else UNSUPPORTED
            at += size
        elif code == 0x11:  # DW_CFA_offset_extended_sf
            value, at = read_signed(program, next_at)
            kept = AT_CFA, value * data_align
        elif code in (0x14, 0x15):  # DW_CFA_val_offset, val_offset_sf
            kept, at = UNSUPPORTED, read_unsigned(program, next_at)[1]
        elif code == 0x2F:  # DW_CFA_GNU_negative_offset_extended
            value, at = read_unsigned(program, next_at)
            kept = AT_CFA, -value * data_align
        else:
            raise DecodeError(f"cannot read an FDE: saw instruction {code:#x}")
        if at > len(program):
            raise DecodeError("cannot read an FDE: saw its end inside an expression")
        if kept is not None and register == self._registers.frame:
            frame = kept
        elif kept is not None and register == self._registers.back:
            back = kept
        return (cfa, frame, back), at

    def _read_cfa(self, program: bytes, at: int, size: int) -> Pair:
        text = program[at : at + size]
        head, tail = text[: len(PLT_HEAD)], text[len(PLT_HEAD) + 1 :]
        if head == PLT_HEAD and tail == PLT_TAIL and LIT0 <= text[len(head)] <= LIT0 + 15:
            return PLT_CFA, text[len(head)] - LIT0
        offset = self._read_place(text[:-1]) if text[-1:] == bytes([DEREF]) else None
        return NO_CFA if offset is None else (LOADED_CFA, offset)

    def _read_kept(self, program: bytes, at: int, size: int) -> Pair:
        offset = self._read_place(program[at : at + size])
        return UNSUPPORTED if offset is None else (int(Kept.AT_FRAME), offset)

    def _read_place(self, text: bytes) -> int | None:
        """Return the offset where an expression is: frame pointer + offset."""
        if len(text) < 2 or text[0] != BREG0 + self._registers.frame:
            return None
        value, end = read_signed(text, 1)
        return value if end == len(text) else None

    def _rule(self, state: State) -> Rule:
        if len(self._rules) >= REMEMBERED_RULES:
            self._rules.clear()
            self._equal = {UNFOLLOWED: UNFOLLOWED, END: END}
        rule = self._make_rule(*state)
        rule = self._rules[state] = self._equal.setdefault(rule, rule)
        return rule

    def _make_rule(self, cfa: Pair, frame: Pair, back: Pair) -> Rule:
        if back == UNDEFINED:
            return END
        if self._registers.back_is_pushed and back != PUSHED:
            return UNFOLLOWED
        kinds = {
            self._registers.stack: Cfa.STACK,
            self._registers.frame: Cfa.FRAME,
            PLT_CFA: Cfa.PLT,
            LOADED_CFA: Cfa.AT_FRAME,
        }
        kind = kinds.get(cfa[0])
        if kind is None or back == UNSUPPORTED or not _is_short(cfa[1], back[1]):
            return UNFOLLOWED
        if not _is_short(frame[1]):
            frame = UNSUPPORTED
        return Rule(kind, cfa[1], Kept(frame[0]), frame[1], Kept(back[0]), back[1])


def _is_short(*offsets: int) -> bool:
    return all(-MAX_OFFSET <= offset <= MAX_OFFSET for offset in offsets)
