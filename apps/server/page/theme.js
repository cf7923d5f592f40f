// Runs before anything is drawn, so that the page does not begin in the wrong colours.
const theme = (() => {
  try {
    return localStorage.getItem("specextend.theme");
  } catch {
    return null;  // storage may be forbidden
  }
})();
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
