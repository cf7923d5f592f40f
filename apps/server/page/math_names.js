// What the converter of TeX knows by name: characters, functions, alphabets.

const pairs = (text) => text.trim().split(/\s+/).map((pair) => [pair.slice(0, pair.indexOf(":")), pair.slice(pair.indexOf(":") + 1)]);

// Letters (mi), and signs (mo) that stand between or before things.
export const LETTERS = new Map(pairs(`
  alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ
  nu:ν xi:ξ omicron:ο pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ
  omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇
  ell:ℓ hbar:ℏ imath:ı jmath:ȷ Re:ℜ Im:ℑ aleph:ℵ emptyset:∅ varnothing:∅ degree:° angle:∠ top:⊤ bot:⊥ R:ℝ N:ℕ Z:ℤ`));
export const SIGNS = new Map(pairs(`
  times:× cdot:⋅ div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ leq:≤ le:≤ geq:≥ ge:≥
  neq:≠ ne:≠ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ ll:≪ gg:≫ prec:≺ succ:≻ in:∈ notin:∉ ni:∋ subset:⊂
  subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ cap:∩ setminus:∖ land:∧ wedge:∧ lor:∨ vee:∨ lnot:¬ neg:¬ forall:∀ exists:∃
  nexists:∄ mid:∣ nmid:∤ parallel:∥ perp:⊥ to:→ rightarrow:→ leftarrow:← gets:← leftrightarrow:↔ Rightarrow:⇒
  implies:⟹ Leftarrow:⇐ Leftrightarrow:⇔ iff:⟺ mapsto:↦ longrightarrow:⟶ uparrow:↑ downarrow:↓ ldots:… dots:… dotsc:…
  cdots:⋯ dotsb:⋯ vdots:⋮ ddots:⋱ therefore:∴ because:∵ prime:′ colon:: coloneqq:≔ vdash:⊢ models:⊨ triangle:△
  backslash:\\ triangleq:≜ asymp:≍ lt:< gt:>`));
export const FENCES = new Map(pairs(`
  {:{ }:} langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ vert:| lvert:| rvert:| Vert:‖ lVert:‖ rVert:‖ |:‖
  lbrace:{ rbrace:} lbrack:[ rbrack:]`));
// Large signs: those in the first list take limits above and below in displayed math.
export const STACKED = new Map(pairs(`
  sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀`));
export const INTEGRALS = new Map(pairs("int:∫ iint:∬ iiint:∭ oint:∮"));
export const FUNCTIONS = new Set(
  "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth exp log ln lg det dim ker deg arg gcd hom Pr".split(" "));
export const LIMITS = new Map([...["lim", "max", "min", "sup", "inf", "argmax", "argmin"].map((name) => [name, name]),
  ["limsup", "lim sup"], ["liminf", "lim inf"]]);
export const ACCENTS = new Map(pairs(`
  hat:^ widehat:^ bar:¯ overline:¯ vec:→ overrightarrow:→ dot:˙ ddot:¨ tilde:˜ widetilde:˜ check:ˇ breve:˘ overbrace:⏞`));
export const BELOW = new Map(pairs("underline:_ underbrace:⏟"));
export const SPACES = new Map([[",", ".17em"], [":", ".22em"], [";", ".28em"], ["!", "-.17em"], [" ", ".25em"],
  ["quad", "1em"], ["qquad", "2em"], ["thinspace", ".17em"], ["enspace", ".5em"], ["medspace", ".22em"],
  ["thickspace", ".28em"]]);
export const IGNORED = new Set(("displaystyle textstyle limits nolimits big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr " +
  "Biggl Biggr nonumber notag").split(" "));
// Environments that are tables, with the signs around them.
const BARE = "matrix smallmatrix aligned align align* gathered gather gather* equation equation* split".split(" ");
export const TABLES = new Map([...BARE.map((name) => [name, ["", ""]]), ["pmatrix", ["(", ")"]], ["bmatrix", ["[", "]"]],
  ["Bmatrix", ["{", "}"]], ["vmatrix", ["|", "|"]], ["Vmatrix", ["‖", "‖"]], ["cases", ["{", ""]]]);

// Alphabets: the first code points of their capitals, small letters and digits, and the letters that stand elsewhere.
const ALPHABETS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, {}],
  boldsymbol: [0x1d468, 0x1d482, 0x1d7ce, {}],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, {C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ"}],
  mathcal: [0x1d49c, 0x1d4b6, 0, {B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ"}],
  mathfrak: [0x1d504, 0x1d51e, 0, {C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ"}],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2, {}],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6, {}],
};
const SAME = {bm: "boldsymbol", bold: "mathbf", Bbb: "mathbb", mathscr: "mathcal", bf: "mathbf"};

// The text in an alphabet, or null where there is none of that name.
export function inAlphabet(name, text) {
  const alphabet = ALPHABETS[SAME[name] ?? name];
  if (!alphabet) return null;
  const [capitals, small, digits, others] = alphabet;
  return [...text].map((c) => {
    if (others[c]) return others[c];
    if (c >= "A" && c <= "Z") return String.fromCodePoint(capitals + c.charCodeAt(0) - 65);
    if (c >= "a" && c <= "z") return String.fromCodePoint(small + c.charCodeAt(0) - 97);
    return digits && c >= "0" && c <= "9" ? String.fromCodePoint(digits + c.charCodeAt(0) - 48) : c;
  }).join("");
}
