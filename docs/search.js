// Ranks search results: guide pages before pages of single objects, unless the query is a name.
var Scorer = {
  score: (result) => {
    const [docname, , , , score, , kind] = result;
    if (kind === "object")
      return docname.includes("theory_checks") || docname.includes("derivations")
        ? score - 12
        : score;
    if (docname.startsWith("reference/api/generated/")) return score - 13;
    if (docname.startsWith("about/")) return score - 8;
    if (/^(how_to\/which_method|reference\/methods)$/.test(docname)) return score + 4;
    if (/^(how_to|cookbook|tutorial|explanation|reference\/[a-z]+$)/.test(docname)) return score + 3;
    return score;
  },
  // the rest is as in Sphinx
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 5, 2: -5 }, // 0: modules, as other objects
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
