#!/bin/bash
# A plan of `hapvr duplicates`: review it.
#   bash PLAN.sh          prints what it would do
#   bash PLAN.sh --act    does it: files of the same bytes become hard links to the one that is kept,
#                         other copies move to $ASIDE; nothing is deleted
#   bash PLAN.sh --undo   puts everything back that is in the record, PLAN.sh.record, and what else of
#                         this plan is in $ASIDE
set -u
act=${1:-}
plan=${BASH_SOURCE[0]:-copies-plan.sh}
here=$(cd -- "$(dirname -- "$plan")" && pwd) || exit 1
record=$here/${plan##*/}.record
ASIDE=${ASIDE:-$here/copies-aside}
marker=$ASIDE/.hapvr-aside
failed=0

complain() { # reason, file
  printf '%s: %q\n' "$1" "$2" >&2
  failed=1
  return 1
}
holds() { # file, bytes, SHA-256
  [ -f "$1" ] && [ ! -L "$1" ] && [ "$(wc -c < "$1")" -eq "$2" ] && [ "$(sha256sum < "$1")" = "$3  -" ]
}
as_planned() { # file, bytes, SHA-256
  holds "$@" || complain 'gone, or changed since the plan was made; left alone' "$1"
}
run() {
  if [ "$act" != --act ]; then
    printf '%q ' would: "$@"
    echo
    return
  fi
  "$@" || { failed=1; return 1; }
}
escaped() { # a name on one line, which printf %b reads again
  local text=${1//\\/\\\\}
  text=${text//$'\n'/\\n}
  printf '%s' "${text//$'\t'/\\t}"
}
checked() { # the fields of a line of the record; prints what its last field must be
  local digest
  digest=$(printf '%s' "$1" | sha256sum)
  printf '%s' "${digest:0:8}"
}
note() { # fields of a line of the record, written before anything is done
  [ "$act" = --act ] || return 0
  local field line=
  for field in "$@"; do line+=$(escaped "$field"; printf '\t.'); line=${line%.}; done
  line+=$(checked "${line%$'\t'}")
  [ ! -s "$record" ] || [ -z "$(tail -c 1 -- "$record")" ] || echo >> "$record" # a full disk has cut it
  printf '%s\n' "$line" >> "$record" || complain 'the record cannot be written' "$record"
}
make_aside() {
  run mkdir -p -- "$ASIDE" || return
  [ "$act" != --act ] || [ -e "$marker" ] || echo 'Copies that a plan has moved here; not indexed.' > "$marker"
}

link() { # kept, bytes, SHA-256, copy, bytes, SHA-256
  [ "$act" != --undo ] || return 0
  as_planned "${@:1:3}" && as_planned "${@:4:3}" && [ ! "$1" -ef "$4" ] || return
  local part=${4%/*}/.hapvr-link-$$
  note linked "$6" "$5" "$1" "$4" "$(stat -c '%a %y' -- "$4")" || return
  run ln -T -- "$1" "$part" && run mv -fT -- "$part" "$4"
}
move() { # kept, bytes, SHA-256, copy, bytes, SHA-256, name below $ASIDE
  local to=$ASIDE/$7
  if [ "$act" = --undo ]; then # what the record has lost
    if holds "$to" "$5" "$6"; then put_back moved "$6" "$5" "$4" "$to" || failed=1; fi
    return
  fi
  as_planned "${@:1:3}" && as_planned "${@:4:3}" && make_aside || return
  if [ "${7#*-}" != "${4##*/}" ]; then printf 'a long name is shortened to %q\n' "$7"; fi
  if [ -e "$to" ]; then complain 'there already' "$to"; return; fi
  note moved "$6" "$5" "$4" "$to" && run mv -nT -- "$4" "$to"
}

put_back() { # moved or linked, SHA-256, bytes, then as noted
  local part
  case $1 in
    moved) # from, to
      if [ ! -e "$5" ] && holds "$4" "$3" "$2"; then return 0; fi
      holds "$5" "$3" "$2" || { complain 'gone from where it was moved to, or changed' "$5"; return; }
      if [ -e "$4" ] || [ -L "$4" ]; then complain 'there is another file again' "$4"; return; fi
      mkdir -p -- "${4%/*}" && mv -nT -- "$5" "$4" && [ ! -e "$5" ] ;;
    linked) # kept, copy, mode and time of change
      [ "$4" -ef "$5" ] || return 0
      part=${5%/*}/.hapvr-link-$$
      cp -T -- "$4" "$part" && chmod "${6%% *}" "$part" && touch -d "${6#* }" "$part" && mv -fT -- "$part" "$5" ;;
  esac
}
undo() {
  local line field fields text
  if [ ! -f "$record" ]; then
    echo "there is no $record, so nothing was done, or was undone" >&2
    failed=1
    return
  fi
  while IFS= read -r line; do
    if [ "$(checked "${line%$'\t'*}")" != "${line##*$'\t'}" ]; then
      complain 'a line of the record is damaged, and left there' "$record"
      printf '%s\n' "$line" >> "$record.left"
      continue
    fi
    line=${line%$'\t'*}
    fields=()
    while IFS= read -r -d $'\t' field; do
      printf -v text '%b' "$field"
      fields+=("$text")
    done <<< "$line"$'\t'
    put_back "${fields[@]}" ||
      { failed=1; printf '%s\t%s\n' "$line" "$(checked "$line")" >> "$record.left"; }
  done < <(sed -e '$a\' -- "$record" | tac)
  if [ "$failed" = 0 ]; then rm -- "$record"; else tac -- "$record.left" > "$record"; rm -- "$record.left"; fi
}
finish() { # after all calls of link and move
  if [ "$act" = --undo ] && [ -d "$ASIDE" ] && [ "$(ls -A -- "$ASIDE")" = .hapvr-aside ]; then
    rm -- "$marker"
    rmdir -- "$ASIDE"
  fi
  exit "$failed"
}
if [ "$act" = --undo ]; then undo; fi
