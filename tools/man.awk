# man.awk -- converts the output of `snug help` to troff or to a Markdown table.
#
#   form=synopsis   the usage lines
#   form=command    the text of a command, its examples, its own flags
#   form=recipe     the recipe flags, which follow the line "Recipe: ..."
#   form=table      the same as rows | flag | values | what |
#   form=list       lines NAME DESCRIPTION
#
# A flag is a line of two spaces, --name, an optional VALUE in capitals, and a description; lines indented further
# continue it.  A line of two spaces and "snug" is an example.  A line with a LABEL in capitals, two spaces and a text
# is a paragraph with that label; lines indented by seven spaces continue it.

function troff(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    return text ~ /^[.']/ ? "\\&" text : text
}

function bold(text) { # flags in a text that is troff already
    gsub(/\\-\\-[a-z][a-z\\-]*/, "\\fB&\\fR", text)
    return text
}

function say(text) { print bold(troff(text)) }

function end_example() {
    if (in_example)
        print ".fi\n.RE"
    in_example = 0
}

function end_flag(    shown) {
    if (flag == "")
        return
    if (form == "table") {
        gsub(/\|/, "\\|", values)
        printf "| `%s` | %s | %s |\n", flag, values, about
    } else {
        shown = "\\fB" troff(flag) "\\fR" (value == "" ? "" : " \\fI" value "\\fR")
        print ".TP\n" shown
        say(about)
        if (values != "") {
            print ".br"
            say("Values: " values ".")
        }
    }
    flag = ""
}

function begin_flag(line) {
    end_flag()
    end_example()
    match(line, /--[a-z0-9-]+/)
    flag = substr(line, RSTART, RLENGTH)
    line = substr(line, RSTART + RLENGTH)
    value = values = ""
    if (match(line, /^ [A-Z]+  +/)) {
        value = substr(line, RSTART, RLENGTH)
        gsub(/ /, "", value)
        line = substr(line, RLENGTH + 1)
    }
    sub(/^ +/, "", line)
    about = line
}

/^Recipe: / { end_flag(); end_example(); in_recipe = 1; next }
/^usage:/ { in_usage = 1 }
in_usage && /^(usage:| +snug )/ {
    if (form == "synopsis") {
        sub(/^(usage:)? +/, "")
        print bold(troff($0))
    }
    next
}
{ in_usage = 0 }
form == "synopsis" { next }
form == "list" {
    name = $1
    sub(/^[^ ]+ +/, "")
    print ".TP\n.I " troff(name)
    say($0)
    next
}
(form == "recipe" || form == "table") {
    if (!in_recipe)
        next
    if (/^  --/)
        begin_flag($0)
    else if (/^ +/ && flag != "") {
        sub(/^ +/, "")
        values = values (values == "" ? "" : " ") $0
    }
    next
}
in_recipe { next }
/^MODEL  / { in_models = 1 } # the man page has a section of its own
in_models { next }
/^  --/ { begin_flag($0); next }
/^    +/ && flag != "" { sub(/^ +/, ""); about = about " " $0; next }
/^  snug / {
    end_flag()
    if (!in_example)
        print ".PP\n.RS\n.nf"
    in_example = 1
    print troff(substr($0, 3))
    next
}
/^[A-Z]+  +/ {
    end_flag(); end_example()
    label = $1
    sub(/^[A-Z]+ +/, "")
    print ".TP\n.I " label
    say($0)
    next
}
/^$/ { end_flag(); end_example(); blank = 1; next }
{
    end_flag(); end_example()
    if (blank && !/^ /)
        print ".PP"
    blank = 0
    sub(/^ +/, "")
    say($0)
}
END { end_flag(); end_example() }
