# data.awk: writes the data of the golden training runs: points.csv, images.csv, colours.csv, series.csv,
# text.txt.
#   awk -f data.awk        into the current directory
# Integer arithmetic only, below 2^53, so that every awk on every machine writes the same bytes. The random
# numbers are those of Park and Miller: x = 16807 x mod (2^31 - 1). golden.sh checks the files' SHA-256.

function draw(below) {
    state = (16807 * state) % 2147483647
    return state % below
}

# COUNT lines of WIDTH whole numbers from 0 to 255 and a class: each class has bright positions.
function table(file, seed, count, width, classes,    n, i, class, line) {
    state = seed
    for (n = 0; n < count; n++) {
        class = draw(classes)
        line = ""
        for (i = 0; i < width; i++)
            line = line (draw(90) + ((i * 7 + class * 5) % (classes * 3) < 3 ? 150 : 0)) ","
        print line class >file
    }
    close(file)
}

function text(file, seed, count,    words, names, n, i, line) {
    state = seed
    words = split("the a one cat dog bird tree sat ran saw on under by mat hill and then it was red old", names, " ")
    for (n = 0; n < count; n++) {
        line = names[1 + draw(words)]
        for (i = 3 + draw(5); i > 0; i--) line = line " " names[1 + draw(words)]
        print line "." >file
    }
    close(file)
}

BEGIN {
    table("points.csv", 11, 180, 12, 3)     # rows of 12 numbers
    table("images.csv", 12, 120, 64, 4)     # 8 x 8
    table("colours.csv", 13, 60, 192, 4)    # 8 x 8 x 3
    table("series.csv", 14, 90, 60, 3)      # 20 places of 3 channels
    text("text.txt", 15, 60)
}
