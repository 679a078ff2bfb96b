# pairs.awk: a small set of combinations in which every pair of settings occurs.
#
# Input: one factor per line, its name and then its settings. Output: one combination per line, with a setting
# of each factor in order. For any two factors every pair of settings is in at least one line. Greedy: each
# line begins with a pair that is still missing, and every further factor gets the setting that adds the most
# missing pairs; of several, the one used least. The same input gives the same lines.

{
    count[NR] = NF - 1
    for (i = 1; i < NF; i++) setting[NR, i] = $(i + 1)
}

function key(f, i, g, j) { return f < g ? f SUBSEP i SUBSEP g SUBSEP j : g SUBSEP j SUBSEP f SUBSEP i }

# The number of missing pairs that setting i of factor f adds to the current line.
function brings(f, i,    g, n) {
    n = 0
    for (g = 1; g <= NR; g++)
        if (g != f && line[g] && (key(f, i, g, line[g]) in missing)) n++
    return n
}

# The first missing pair begins a line.
function begin_line(    f, g, i, j) {
    for (f = 1; f <= NR; f++) line[f] = 0
    for (f = 1; f < NR; f++)
        for (g = f + 1; g <= NR; g++)
            for (i = 1; i <= count[f]; i++)
                for (j = 1; j <= count[g]; j++)
                    if (key(f, i, g, j) in missing) {
                        line[f] = i
                        line[g] = j
                        return
                    }
}

function fill(f,    i, n, best, most) {
    best = 0
    for (i = 1; i <= count[f]; i++) {
        n = brings(f, i)
        if (!best || n > most || (n == most && used[f, i] + 0 < used[f, best] + 0)) {
            best = i
            most = n
        }
    }
    line[f] = best
}

function end_line(    f, g, k, text) {
    for (f = 1; f <= NR; f++) {
        text = text (f > 1 ? " " : "") setting[f, line[f]]
        used[f, line[f]]++
        for (g = f + 1; g <= NR; g++) {
            k = key(f, line[f], g, line[g])
            if (k in missing) {
                delete missing[k]
                left--
            }
        }
    }
    print text
}

END {
    for (f = 1; f < NR; f++)
        for (g = f + 1; g <= NR; g++)
            for (i = 1; i <= count[f]; i++)
                for (j = 1; j <= count[g]; j++) {
                    missing[key(f, i, g, j)]
                    left++
                }
    while (left > 0) {
        begin_line()
        for (f = 1; f <= NR; f++)
            if (!line[f]) fill(f)
        end_line()
    }
}
