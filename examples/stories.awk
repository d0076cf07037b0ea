# stories.awk -- writes short stories in simple English: a text that a small model learns in less than a minute.
# usage: awk -f examples/stories.awk [-v stories=1500] [-v seed=1] >stories.txt
#
# A story has a child, an animal, a thing and a place, and keeps to them from its first sentence to its last.

function one_of(words,    list, n) {
    n = split(words, list, "|")
    return list[int(rand() * n) + 1]
}
function capital(word) { return toupper(substr(word, 1, 1)) substr(word, 2) }

BEGIN {
    if (stories == "") stories = 1500
    srand(seed == "" ? 1 : seed)
    for (i = 0; i < stories; i++) {
        if (rand() < 0.5) {
            name = one_of("Anna|Lily|Mia|Rosa|Zoe|Emma"); she = "she"; her = "her"
        } else {
            name = one_of("Tom|Ben|Max|Leo|Sam|Noah"); she = "he"; her = "his"
        }
        She = capital(she)
        animal = one_of("dog|cat|bird|rabbit|fox|duck|horse|mouse")
        thing = one_of("ball|book|kite|hat|lamp|boat|key|box|shoe|coin")
        color = one_of("red|blue|green|yellow|white|black")
        place = one_of("in the garden|by the river|in the forest|on the hill|near the old house|at the beach|under the bridge")
        friend = one_of("Mom|Dad|Grandma|Grandpa|the teacher|the baker")

        story = one_of("One day|One morning|One evening|Once upon a time|On a sunny day|On a cold day") ", " name \
            one_of(" went for a walk| played outside| was alone| wanted to play") " " place ". "
        story = story one_of(She " had a " color " " thing " with " (her == "his" ? "him" : "her") "." \
            "|" She " found a " color " " thing " " one_of("in the grass|behind a tree|on the ground") "." \
            "|" capital(friend) " had given " (her == "his" ? "him" : "her") " a " color " " thing ".") " "
        story = story one_of("Then a little " animal " came and took the " thing "." \
            "|Then the wind took the " thing " away." \
            "|But the " thing " fell into the water." \
            "|Then " she " saw a little " animal " that was very sad.") " "
        story = story one_of(name " was sad and began to cry.|" name " did not know what to do." \
            "|\"Where is my " thing "?\" asked " name ".|\"Please come back!\" said " name ".") " "
        story = story one_of("The " animal " said, \"Do not be sad. I will help you.\"" \
            "|A kind " animal " came and said, \"I can help you.\"" \
            "|So " she " asked " friend " for help.") " "
        story = story one_of("They looked for a long time" \
            "|They ran as fast as they could" \
            "|They worked together") ", and " one_of("soon|at last|in the end") " they " \
            one_of("found the " color " " thing "|had the " thing " again|saw the " thing " behind a big stone") ". "
        story = story one_of(name " was very happy.|\"Thank you!\" said " name "." \
            "|" name " smiled and gave the " animal " a hug.") " "
        story = story one_of("From that day on, " name " and the " animal " were good friends." \
            "|Then they went home and had some cake." \
            "|That night, " name " dreamed of the " animal " and the " thing ".")
        # lines of at most 76 characters
        n_words = split(story, words, " ")
        line = ""
        for (k = 1; k <= n_words; k++) {
            if (length(line) + length(words[k]) > 75) { print line; line = "" }
            line = line (line == "" ? "" : " ") words[k]
        }
        print line "\n"
    }
}
